"""The faults of a durable world.

`ALL` is what any scenario can meet.  The other groups need something of it: snapshots, content, subscribers, or acts of
its own (`DurableScenario.interference`).  A scenario declares what it must see fire.
"""

from __future__ import annotations

from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING, STALLING, Fault, Strength

UNTIMELY, UNTOLD, STILL = Strength.UNTIMELY, Strength.UNTOLD, Strength.STILL

APPEND_ANSWER_LOST = Fault(name="append-answer-lost", strength=UNTOLD)
APPEND_REFUSED = Fault(name="append-refused")
STORE_REFUSED = Fault(name="store-refused")
STALE_READ = Fault(name="stale-read", strength=UNTOLD)
READ_BY_PAGES = Fault(name="read-by-pages", strength=UNTIMELY)
SNAPSHOT_REFUSED = Fault(name="snapshot-refused")
SNAPSHOT_LOST = Fault(name="snapshot-lost", strength=UNTOLD)
SNAPSHOT_LATE = Fault(name="snapshot-late", strength=UNTOLD)
SNAPSHOT_UNREADABLE = Fault(name="snapshot-unreadable", strength=UNTOLD)
SNAPSHOT_REORDERED = Fault(name="snapshot-reordered", strength=UNTIMELY)
CONTENT_MISSING = Fault(name="content-missing")
DELIVERY_DUPLICATED = Fault(name="delivery-duplicated", strength=UNTIMELY)
DELIVERY_REORDERED = Fault(name="delivery-reordered", environmental=True, alike="delivery", strength=UNTIMELY)
DELIVERY_DELAYED = Fault(name="delivery-delayed", environmental=True, alike="delivery", strength=UNTIMELY)
DELIVERY_LOST = Fault(name="delivery-lost", environmental=True, alike="delivery", strength=UNTOLD)
WAKEUP_DROPPED = Fault(name="wakeup-dropped", environmental=True, alike="delivery", strength=UNTOLD)
EFFECT_REFUSED = Fault(name="effect-refused", environmental=True)
EFFECT_ANSWER_LOST = Fault(name="effect-answer-lost", environmental=True, strength=UNTOLD)
STEP_TIMEOUT = Fault(name="step-timeout", environmental=True, strength=UNTOLD)
EFFECT_HUNG = Fault(name="effect-hung", environmental=True, strength=STILL)
COMPACTION = Fault(name="compaction", strength=None)
CANCEL = Fault(name="cancel", budget=1, strength=None)
FORK = Fault(name="fork", budget=2, strength=None)
RECOVER_TWICE = Fault(name="recover-twice", strength=None)
DEPLOY = Fault(name="deploy", budget=1, strength=None)
NOTIFICATION_LOST = Fault(name="notification-lost", strength=UNTOLD)
NOTIFICATION_DUPLICATED = Fault(name="notification-duplicated", strength=UNTIMELY)
NOTIFICATION_LATE = Fault(name="notification-late", strength=UNTIMELY)
LEASE_REFUSED = Fault(name="lease-refused")
TIMER_LATE = Fault(name="timer-late", strength=UNTIMELY)
TIMER_EARLY = Fault(name="timer-early", strength=UNTIMELY)
CLOCK_JUMP = Fault(name="clock-jump", strength=UNTOLD)
EVENT_MISSED = Fault(name="event-missed", strength=UNTOLD)
EVENT_TWICE = Fault(name="event-twice", strength=UNTIMELY)
EVENT_LATE = Fault(name="event-late", strength=UNTIMELY)

CRASHES = (CRASH_BEFORE, CRASH_AFTER)
DELIVERIES = (DELIVERY_DUPLICATED, DELIVERY_REORDERED, DELIVERY_DELAYED)
EFFECTS = (EFFECT_REFUSED, EFFECT_ANSWER_LOST, STEP_TIMEOUT)
ALL = (*CRASHES, HOLDING, APPEND_ANSWER_LOST, *DELIVERIES, *EFFECTS)

REFUSALS = (APPEND_REFUSED, STORE_REFUSED)
READS = (STALE_READ, READ_BY_PAGES)
SNAPSHOTS = (SNAPSHOT_REFUSED, SNAPSHOT_LOST, SNAPSHOT_LATE, SNAPSHOT_UNREADABLE, SNAPSHOT_REORDERED)
LOSSES = (DELIVERY_LOST, WAKEUP_DROPPED)
OPERATIONS = (COMPACTION, CANCEL, FORK, RECOVER_TWICE)
NOTIFICATIONS = (NOTIFICATION_LOST, NOTIFICATION_DUPLICATED, NOTIFICATION_LATE)
LEASES = (STALLING, LEASE_REFUSED)
TIMES = (TIMER_LATE, TIMER_EARLY, CLOCK_JUMP)
OBSERVATIONS = (EVENT_MISSED, EVENT_TWICE, EVENT_LATE)

KINDS = (
    *CRASHES,
    HOLDING,
    APPEND_ANSWER_LOST,
    *REFUSALS,
    *READS,
    *SNAPSHOTS,
    CONTENT_MISSING,
    *DELIVERIES,
    *LOSSES,
    *EFFECTS,
    EFFECT_HUNG,
    *OPERATIONS,
    DEPLOY,
    *NOTIFICATIONS,
    *LEASES,
    *TIMES,
    *OBSERVATIONS,
)
"""Every kind there is."""
