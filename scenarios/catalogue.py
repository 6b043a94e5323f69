"""All scenarios and mutants, by name."""

from __future__ import annotations

from dst.scenario import Scenario
from scenarios.chat_session import ChatSession
from scenarios.dashboard import Dashboard
from scenarios.fork_and_replay import ForkAndReplay
from scenarios.leader_lease import LeaderLease
from scenarios.order_saga import OrderSaga
from scenarios.parallel_quotes import ParallelQuotes
from scenarios.payout import Payout
from scenarios.policy_agent import PolicyAgent
from scenarios.reminders import Reminders
from scenarios.research_swarm import ResearchSwarm
from scenarios.rolling_deploy import RollingDeploy
from scenarios.two_workers import TwoWorkers

SCENARIOS: dict[str, type[Scenario]] = {
    s.name: s
    for s in (
        OrderSaga,
        ChatSession,
        ParallelQuotes,
        Payout,
        PolicyAgent,
        RollingDeploy,
        ForkAndReplay,
        LeaderLease,
        TwoWorkers,
        Reminders,
        ResearchSwarm,
        Dashboard,
    )
}
