//! Times and durations as people write and read them.
//! Never guesses a unit.

use std::time::Duration;

use sealwire::{Clock as _, SystemClock};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

/// Seconds since the Unix epoch.
pub(crate) fn now_s() -> u64 {
    SystemClock.now_s()
}

/// Reads a duration such as `500ms`, `30s`, `15m`, `1h` or `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(DURATION_HELP.to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| DURATION_HELP.to_owned())?;
    number.checked_mul(factor).map(Duration::from_millis).ok_or_else(|| "that is too long".to_owned())
}

/// Reads a duration for use as an interval, which must not be zero.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("give a time above zero, such as 1s".to_owned()),
        interval => Ok(interval),
    }
}

const DURATION_HELP: &str = "write a whole number and its unit, such as 500ms, 30s, 15m, 1h or 7d";

/// Reads a time, in seconds since the Unix epoch: a number of them, `now`, or RFC 3339 text.
pub(crate) fn instant(text: &str) -> Result<u64, String> {
    if text == "now" {
        return Ok(now_s());
    }
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let time = OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|_| "write `now`, seconds since 1970, or a time such as 2026-03-01T22:00:00Z".to_owned())?;
    u64::try_from(time.unix_timestamp()).map_err(|_| "that is before 1970".to_owned())
}

/// Reads a time like [`instant`], or a day and a time in UTC, which means the next such time.
pub(crate) fn instant_or_day(text: &str) -> Result<u64, String> {
    next_day(text, now_s()).map_or_else(|| instant(text).map_err(|why| format!("{why}, or 'sun 03:00' (UTC)")), Ok)
}

/// The next `sun 03:00` from `now_s` on.
fn next_day(text: &str, now_s: u64) -> Option<u64> {
    let (day, time) = text.trim().split_once(' ')?;
    let day = day.to_ascii_lowercase();
    // 1970-01-01 was a Thursday.
    let days_on = ["thu", "fri", "sat", "sun", "mon", "tue", "wed"].iter().position(|name| *name == day)?;
    let time = time::Time::parse(time.trim(), format_description!("[hour]:[minute]")).ok()?;
    let wanted = u64::try_from(days_on).ok()? * DAY_S + u64::from(time.hour()) * 3_600 + u64::from(time.minute()) * 60;
    Some(now_s + (wanted + WEEK_S - now_s % WEEK_S) % WEEK_S)
}

const DAY_S: u64 = 86_400;
const WEEK_S: u64 = 7 * DAY_S;

/// `2026-03-01T22:00:00Z`.
pub(crate) fn absolute(seconds: u64) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_else(|| format!("second {seconds}"))
}

/// `2026-03-01T22:00:00Z (in 14 min)`.
pub(crate) fn both(seconds: u64, now_s: u64) -> String {
    format!("{} ({})", absolute(seconds), relative(seconds, now_s))
}

/// `in 14 min`, `3 h ago`, `now`.
pub(crate) fn relative(seconds: u64, now_s: u64) -> String {
    let distance = seconds.abs_diff(now_s);
    let amount = match distance {
        0 => return "now".to_owned(),
        1..120 => format!("{distance} s"),
        120..7_200 => format!("{} min", distance / 60),
        7_200..172_800 => format!("{} h", distance / 3_600),
        _ => format!("{} days", distance / 86_400),
    };
    if seconds > now_s { format!("in {amount}") } else { format!("{amount} ago") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("15m"), Ok(Duration::from_secs(900)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3_600)));
        for bad in ["", "5", "m", "1.5h", "-1s", "1 h", "1M", "99999999999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_read_as_seconds_or_rfc_3339() {
        assert_eq!(instant("1790000000"), Ok(1_790_000_000));
        assert_eq!(instant("2026-09-21T14:13:20Z"), Ok(1_790_000_000));
        assert_eq!(instant("2026-09-21T16:13:20+02:00"), Ok(1_790_000_000));
        assert!(instant("yesterday").is_err() && instant("1960-01-01T00:00:00Z").is_err());
        assert_eq!(absolute(1_790_000_000), "2026-09-21T14:13:20Z");
    }

    #[test]
    fn a_day_is_the_next_one_in_any_letter_case() {
        // A Monday, 14:13:20.
        let now = 1_789_999_800 + 200;
        assert_eq!(absolute(now), "2026-09-21T14:13:20Z");
        for (text, next) in [
            ("mon 14:14", "2026-09-21T14:14:00Z"),
            ("Mon 14:13", "2026-09-28T14:13:00Z"),
            ("sun 03:00", "2026-09-27T03:00:00Z"),
            ("WED 00:00", "2026-09-23T00:00:00Z"),
        ] {
            assert_eq!(next_day(text, now).map(absolute).as_deref(), Some(next), "{text}");
        }
        for bad in ["sun", "sun 24:00", "sun 3", "son 03:00", "03:00"] {
            assert!(instant_or_day(bad).unwrap_err().contains("'sun 03:00'"), "{bad}");
        }
    }

    #[test]
    fn relative_times_say_the_direction() {
        assert_eq!(relative(1_000, 1_000), "now");
        assert_eq!(relative(1_900, 1_000), "in 15 min");
        assert_eq!(relative(1_000, 1_060), "60 s ago");
        assert_eq!(relative(0, 864_000), "10 days ago");
    }
}
