"""Booking a seat: hold it, have it paid for, print the ticket."""

from kernel import RetryPolicy, TypedFailure, flow, saga, step


class CardDeclined(TypedFailure):
    """The bank said no."""


stubborn = RetryPolicy(attempts=100)  # more than a bad day uses up: what has been paid for must end

hold_seat = step("hold-seat")
release_seat = step("release-seat", retry=stubborn)  # whatever the order holds, if it holds anything
pay = step("pay", failures=(CardDeclined,))
refund = step("refund", retry=stubborn)
print_ticket = step("print-ticket", retry=stubborn)


@flow
async def book(ctx, order):
    try:
        async with saga(ctx) as s:
            seat = await ctx.run(hold_seat, order)
            s.compensate(release_seat, order)
            s.compensate(refund, order)
            await ctx.run(pay, order)
    except CardDeclined:
        return {"status": "declined"}
    await ctx.run(print_ticket, seat)
    await ctx.emit("seat.sold", seat)
    return {"status": "booked", "seat": seat["seat"]}
