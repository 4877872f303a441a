//! Hours of the day and days of the week as minutes of the week in UTC.
//! Never asks a clock or a time-zone database: an offset is written in the rule.

use std::ops::Range;

/// Minutes of a day and of a week; a week begins on Monday at 00:00 UTC.
pub(crate) const DAY: u32 = 24 * 60;
/// See [`DAY`].
pub(crate) const WEEK: u32 = 7 * DAY;

/// The days as policy files write them.
pub(crate) const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// The minute of the week of a time, from 0.
pub(crate) fn minute_of_week(now_ms: u64) -> u32 {
    let minutes = now_ms / 60_000;
    // 1970-01-01 was a Thursday, the fourth day.
    u32::try_from((minutes + 3 * u64::from(DAY)) % u64::from(WEEK)).unwrap_or_default()
}

/// `"08:00-18:00"` as minutes of the day. The end may be smaller than the start: then it is on the next day.
pub(crate) fn hours(text: &str) -> Option<(u32, u32)> {
    let (start, end) = text.split_once('-')?;
    let (start, end) = (time_of_day(start.trim())?, time_of_day(end.trim())?);
    (start < DAY && start != end).then_some((start, end))
}

fn time_of_day(text: &str) -> Option<u32> {
    let (hour, minute) = text.split_once(':')?;
    if hour.len() != 2 || minute.len() != 2 || !hour.bytes().chain(minute.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (hour, minute): (u32, u32) = (hour.parse().ok()?, minute.parse().ok()?);
    let minutes = hour * 60 + minute;
    (minute < 60 && minutes <= DAY).then_some(minutes)
}

/// `mon` or `mon-fri` as positions in [`DAYS`]. `sat-mon` wraps around the end of the week.
pub(crate) fn days(text: &str) -> Option<Vec<usize>> {
    let day = |text: &str| DAYS.iter().position(|day| *day == text.trim());
    let (first, last) = match text.split_once('-') {
        None => (day(text)?, day(text)?),
        Some((first, last)) => (day(first)?, day(last)?),
    };
    let count = (last + 7 - first) % 7 + 1;
    Some((first..first + count).map(|day| day % 7).collect())
}

/// `Z`, `+02:00` or `-05:30` in minutes east of UTC.
pub(crate) fn offset(text: &str) -> Option<i32> {
    if text == "Z" {
        return Some(0);
    }
    let east = text.strip_prefix('+').map(|rest| (1, rest));
    let (sign, rest) = east.or_else(|| Some((-1, text.strip_prefix('-')?)))?;
    let minutes = i32::try_from(time_of_day(rest)?).ok()?;
    // The offsets in use go from -12:00 to +14:00.
    (minutes <= 14 * 60).then_some(sign * minutes)
}

/// The minutes of the week in UTC at which it is one of `days` (by its start) and within `hours`, in order and merged.
pub(crate) fn intervals(days: &[usize], hours: (u32, u32), offset: i32) -> Vec<Range<u32>> {
    let (start, end) = hours;
    let length = if end > start { end - start } else { end + DAY - start };
    let shift = u32::try_from(i64::from(WEEK) - i64::from(offset)).unwrap_or(WEEK);
    let mut pieces: Vec<Range<u32>> = Vec::new();
    for day in days {
        let day = u32::try_from(*day).unwrap_or_default();
        let from = (day * DAY + start + shift) % WEEK;
        let until = from + length;
        pieces.push(from..until.min(WEEK));
        if until > WEEK {
            pieces.push(0..until - WEEK);
        }
    }
    pieces.sort_by_key(|piece| piece.start);
    let mut merged: Vec<Range<u32>> = Vec::new();
    for piece in pieces {
        match merged.last_mut() {
            Some(last) if piece.start <= last.end => last.end = last.end.max(piece.end),
            _ => merged.push(piece),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_strictly() {
        assert_eq!(hours("08:00-18:30"), Some((480, 1110)));
        assert_eq!(hours("22:00-06:00"), Some((1320, 360)));
        assert_eq!(hours("00:00-24:00"), Some((0, 1440)));
        for bad in ["8:00-18:00", "08:00", "08:60-09:00", "25:00-26:00", "24:00-01:00", "08:00-08:00", "08:00-18:00x"] {
            assert_eq!(hours(bad), None, "{bad}");
        }
        assert_eq!(days("mon"), Some(vec![0]));
        assert_eq!(days("mon-fri"), Some(vec![0, 1, 2, 3, 4]));
        assert_eq!(days("sat-mon"), Some(vec![5, 6, 0]));
        assert_eq!(days("monday"), None);
        assert_eq!(offset("+02:00"), Some(120));
        assert_eq!(offset("-05:30"), Some(-330));
        assert_eq!(offset("02:00"), None);
        assert_eq!(offset("+15:00"), None);
    }

    #[test]
    fn the_week_begins_on_monday() {
        // 2026-09-21 00:00 UTC is a Monday.
        let monday = 1_789_948_800_000;
        assert_eq!(minute_of_week(monday), 0);
        assert_eq!(minute_of_week(monday - 1), WEEK - 1);
        assert_eq!(minute_of_week(monday + 60_000), 1);
    }

    #[test]
    fn intervals_match_a_minute_by_minute_count() {
        for (days, hours, offset) in [
            (vec![0, 1, 2, 3, 4], (480, 1080), 0),
            (vec![6], (1320, 360), 0),
            (vec![0], (0, 1440), 120),
            (vec![0, 1, 2, 3, 4, 5, 6], (1320, 360), -330),
            (vec![5, 6], (600, 1440), 840),
        ] {
            let found = intervals(&days, hours, offset);
            for minute in 0..WEEK {
                let local = (i64::from(minute) + i64::from(offset)).rem_euclid(i64::from(WEEK));
                let within = |local: i64| {
                    let (day, of_day) = (local / i64::from(DAY), local % i64::from(DAY));
                    let (start, end) = (i64::from(hours.0), i64::from(hours.1));
                    let today = |day: i64| days.iter().any(|known| i64::try_from(*known) == Ok(day));
                    if start < end {
                        today(day) && of_day >= start && of_day < end
                    } else {
                        (today(day) && of_day >= start) || (today((day + 6) % 7) && of_day < end)
                    }
                };
                let expected = within(local);
                assert_eq!(found.iter().any(|piece| piece.contains(&minute)), expected, "{days:?} {hours:?} {minute}");
            }
        }
    }
}
