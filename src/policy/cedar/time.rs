//! Hours of the week as a condition.
//! Never longer than need be: what is alike on every day is asked of the day.

use std::ops::Range;

use cedar_policy::pst::{BinaryOp, Var};

use super::expr::{all, any, binary, integer, path};
use crate::policy::model::{DAY, ExprRef, WEEK};

/// `intervals` as a condition on `context.minute_of_week`, or on `context.minute_of_day` where every day is alike.
pub(crate) fn condition(intervals: &[Range<u32>]) -> ExprRef {
    let (attribute, pieces) = match every_day(intervals) {
        Some(pieces) => ("minute_of_day", pieces),
        None => ("minute_of_week", intervals.to_vec()),
    };
    let end = if attribute == "minute_of_day" { DAY } else { WEEK };
    any(pieces.iter().map(|piece| {
        let minute = || path(Var::Context, &[attribute.into()]);
        let from = (piece.start > 0).then(|| binary(BinaryOp::GreaterEq, minute(), integer(piece.start.into())));
        let until = (piece.end < end).then(|| binary(BinaryOp::Less, minute(), integer(piece.end.into())));
        all(from.into_iter().chain(until))
    }))
}

/// The intervals of one day, if all days have the same.
fn every_day(intervals: &[Range<u32>]) -> Option<Vec<Range<u32>>> {
    let of_day = |day: u32| -> Vec<Range<u32>> {
        let (from, until) = (day * DAY, (day + 1) * DAY);
        intervals
            .iter()
            .map(|piece| piece.start.max(from)..piece.end.min(until))
            .filter(|piece| piece.start < piece.end)
            .map(|piece| piece.start - from..piece.end - from)
            .collect()
    };
    let first = of_day(0);
    (1..7).all(|day| of_day(day) == first).then_some(first)
}
