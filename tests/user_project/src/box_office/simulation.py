"""The box office in a simulated world: what may go wrong there, and what must hold all the same."""

from box_office.booking import CardDeclined, book
from dst.durable import faults, invariants
from dst.durable.scenario import DurableScenario
from dst.faults import Fault
from dst.invariants import Broken, Invariant

CARD_DECLINED = Fault(name="card-declined", environmental=True)


class NoSeatIsLost(Invariant):
    """A seat that nobody can buy any more, and nobody has bought."""

    name = "no-seat-is-lost"
    says = "a seat that was held is sold or released in the end"
    kinds = ("performed",)  # what services did: (kind, service, operation, idempotency key, attempt)
    initial = frozenset()

    def key(self, record):
        order = record[3].partition("/")[0]
        return order, order

    def advance(self, done, record):
        return done | {record[2]}

    def at_end(self, done):
        if "hold-seat" in done and not done & {"release-seat", "print-ticket"}:
            raise Broken("the seat is held, and neither sold nor released", "one of the two")


class Booking(DurableScenario):
    name = "booking"
    story = "one seat: held, paid for, printed; or the card is declined"
    faults = (
        *faults.CRASHES,
        faults.APPEND_ANSWER_LOST,
        faults.EFFECT_REFUSED,
        faults.EFFECT_ANSWER_LOST,
        CARD_DECLINED,
    )
    invariants = (*invariants.DURABLE, NoSeatIsLost())
    marks = ("booked", "declined")

    def flows(self):
        return [book]

    def world(self, sim):
        hall, bank, printer = self.service("hall"), self.service("bank"), self.service("printer")
        return {
            "hold-seat": hall.effect("hold-seat", lambda order: {"seat": "B4"}),
            "release-seat": hall.effect("release-seat", lambda order: None),
            "pay": bank.effect("pay", lambda order: {"receipt": "r-1"}, {"declined": (CARD_DECLINED, CardDeclined)}),
            "refund": bank.effect("refund", lambda order: None),
            "print-ticket": printer.effect("print-ticket", lambda seat: None),
        }

    async def drive(self, sim):
        await self.start("book", {"concert": "c-7"}, execution_id="order-1")

    def finish(self, sim):
        super().finish(sim)
        done = {record[2] for record in sim.records if record[0] == "performed"}
        sim.sometimes("booked", "print-ticket" in done)
        sim.sometimes("declined", "release-seat" in done and "pay" not in done)
