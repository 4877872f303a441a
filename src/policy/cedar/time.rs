//! Hours of the week as a condition.
//! Never longer than necessary: if all days are alike, the condition is on the time of day.

use std::ops::Range;

use cedar_policy::pst::{BinaryOp, Var};

use super::expr::{all, any, binary, integer, path};
use crate::policy::model::{DAY, ExprRef, WEEK};

/// `intervals` as a condition on `context.minute_of_week`, or on `context.minute_of_day` if all days are alike.
pub(crate) fn condition(intervals: &[Range<u32>]) -> ExprRef {
    let of_day = |day: u32| -> Vec<Range<u32>> {
        let (from, until) = (day * DAY, (day + 1) * DAY);
        let pieces = intervals.iter().map(|piece| piece.start.max(from)..piece.end.min(until));
        pieces.filter(|piece| piece.start < piece.end).map(|piece| piece.start - from..piece.end - from).collect()
    };
    let is_daily = (1..7).all(|day| of_day(day) == of_day(0));
    let (attribute, end) = if is_daily { ("minute_of_day", DAY) } else { ("minute_of_week", WEEK) };
    let pieces = if is_daily { of_day(0) } else { intervals.to_vec() };
    any(pieces.iter().map(|piece| {
        let minute = || path(Var::Context, &[attribute.into()]);
        let from = (piece.start > 0).then(|| binary(BinaryOp::GreaterEq, minute(), integer(piece.start.into())));
        let until = (piece.end < end).then(|| binary(BinaryOp::Less, minute(), integer(piece.end.into())));
        all(from.into_iter().chain(until))
    }))
}
