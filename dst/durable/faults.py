"""The faults of a durable world.

`ALL` is what any scenario can meet.  The other groups need something of it: snapshots, content, subscribers, or acts of
its own (`DurableScenario.interference`).  A scenario declares what it must see fire.
"""

from __future__ import annotations

from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING, STALLING, Fault

APPEND_ANSWER_LOST = Fault(name="append-answer-lost")
APPEND_REFUSED = Fault(name="append-refused")
STORE_REFUSED = Fault(name="store-refused")
STALE_READ = Fault(name="stale-read")
READ_BY_PAGES = Fault(name="read-by-pages")
SNAPSHOT_REFUSED = Fault(name="snapshot-refused")
SNAPSHOT_LOST = Fault(name="snapshot-lost")
SNAPSHOT_LATE = Fault(name="snapshot-late")
SNAPSHOT_UNREADABLE = Fault(name="snapshot-unreadable")
SNAPSHOT_REORDERED = Fault(name="snapshot-reordered")
CONTENT_MISSING = Fault(name="content-missing")
DELIVERY_DUPLICATED = Fault(name="delivery-duplicated")
DELIVERY_REORDERED = Fault(name="delivery-reordered", environmental=True, alike="delivery")
DELIVERY_DELAYED = Fault(name="delivery-delayed", environmental=True, alike="delivery")
DELIVERY_LOST = Fault(name="delivery-lost", environmental=True, alike="delivery")
WAKEUP_DROPPED = Fault(name="wakeup-dropped", environmental=True, alike="delivery")
EFFECT_REFUSED = Fault(name="effect-refused", environmental=True)
EFFECT_ANSWER_LOST = Fault(name="effect-answer-lost", environmental=True)
STEP_TIMEOUT = Fault(name="step-timeout", environmental=True)
EFFECT_HUNG = Fault(name="effect-hung", environmental=True)
COMPACTION = Fault(name="compaction")
CANCEL = Fault(name="cancel", budget=1)
FORK = Fault(name="fork", budget=2)
RECOVER_TWICE = Fault(name="recover-twice")
DEPLOY = Fault(name="deploy", budget=1)
NOTIFICATION_LOST = Fault(name="notification-lost")
NOTIFICATION_DUPLICATED = Fault(name="notification-duplicated")
NOTIFICATION_LATE = Fault(name="notification-late")
LEASE_REFUSED = Fault(name="lease-refused")
TIMER_LATE = Fault(name="timer-late")
TIMER_EARLY = Fault(name="timer-early")
CLOCK_JUMP = Fault(name="clock-jump")
EVENT_MISSED = Fault(name="event-missed")
EVENT_TWICE = Fault(name="event-twice")
EVENT_LATE = Fault(name="event-late")

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
