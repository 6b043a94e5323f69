"""The faults of a durable world."""

from __future__ import annotations

from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING, Fault

APPEND_ANSWER_LOST = Fault(name="append-answer-lost")
DELIVERY_DUPLICATED = Fault(name="delivery-duplicated")
DELIVERY_REORDERED = Fault(name="delivery-reordered", environmental=True, alike="delivery")
DELIVERY_DELAYED = Fault(name="delivery-delayed", environmental=True, alike="delivery")
EFFECT_REFUSED = Fault(name="effect-refused", environmental=True)
EFFECT_ANSWER_LOST = Fault(name="effect-answer-lost", environmental=True)
STEP_TIMEOUT = Fault(name="step-timeout", environmental=True)

CRASHES = (CRASH_BEFORE, CRASH_AFTER)
DELIVERIES = (DELIVERY_DUPLICATED, DELIVERY_REORDERED, DELIVERY_DELAYED)
EFFECTS = (EFFECT_REFUSED, EFFECT_ANSWER_LOST, STEP_TIMEOUT)
ALL = (*CRASHES, HOLDING, APPEND_ANSWER_LOST, *DELIVERIES, *EFFECTS)
