"""All scenarios and mutants, by name."""

from __future__ import annotations

from dst.scenario import Scenario
from scenarios.chat_session import ChatSession
from scenarios.order_saga import OrderSaga

SCENARIOS: dict[str, type[Scenario]] = {s.name: s for s in (OrderSaga, ChatSession)}
