//! Numbers as JSON writes them, compared as they are written.
//! Never rounds: a text between two bounds is between them, however many digits it has.

use std::fmt;

/// A number as far as a comparison with a bound needs it: ordered by value.
///
/// It is `whole + fraction / 10^18`, and a little more if there are digits `beyond` the eighteenth. A bound has none, so
/// the order of a number and a bound is that of their values. Beyond 10^18, numbers are only known to be larger than every
/// bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Decimal {
    /// The largest integer that is not larger.
    pub(crate) whole: i64,
    /// In units of 10^-18, below 10^18.
    pub(crate) fraction: i64,
    pub(crate) beyond: bool,
}

/// The digits before and after the point that are told apart, and what they make.
const DIGITS: i64 = 18;
const UNIT: i64 = 10_i64.pow(18);
const LEAST: i64 = -UNIT;

impl Decimal {
    /// The number in a JSON text, or in a float of TOML; `None` if it is none, or so large that a double cannot hold it:
    /// many programs read such a number as infinity.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let written = Written::of(text)?;
        if !text.parse::<f64>().is_ok_and(f64::is_finite) {
            return None;
        }
        let Some(point) = written.point else { return Some(Self { whole: 0, fraction: 0, beyond: false }) };
        if point > DIGITS {
            let whole = if written.negative { -UNIT - 1 } else { UNIT };
            return Some(Self { whole, fraction: 0, beyond: true });
        }
        let (mut whole, mut fraction, mut beyond) = (0, 0, false);
        for (place, digit) in (-point..).zip(written.digits()) {
            // `place` is −1 for the last digit before the point, and 0 for the first one after it.
            if place < 0 {
                whole += digit * 10_i64.pow(u32::try_from(-place - 1).ok()?);
            } else if place < DIGITS {
                fraction += digit * 10_i64.pow(u32::try_from(DIGITS - 1 - place).ok()?);
            } else {
                beyond |= digit != 0;
            }
        }
        Some(if written.negative {
            Self { whole, fraction, beyond }.negated()
        } else {
            Self { whole, fraction, beyond }
        })
    }

    /// The number that a rule writes as a bound; `None` if it has more digits than are told apart.
    pub(crate) fn bound(text: &str) -> Option<Self> {
        Self::parse(text).filter(|bound| !bound.beyond)
    }

    /// The opposite of a number that is not negative.
    fn negated(self) -> Self {
        match (self.fraction, self.beyond) {
            (0, false) => Self { whole: -self.whole, ..self },
            (fraction, false) => Self { whole: -self.whole - 1, fraction: UNIT - fraction, beyond: false },
            (fraction, true) => Self { whole: -self.whole - 1, fraction: UNIT - 1 - fraction, beyond: true },
        }
    }
}

impl From<i64> for Decimal {
    /// Integers above 10^18 are only known to be larger than every bound.
    fn from(value: i64) -> Self {
        match value {
            UNIT.. => Self { whole: UNIT, fraction: 0, beyond: true },
            ..=LEAST => Self { whole: -UNIT - 1, fraction: 0, beyond: true },
            whole => Self { whole, fraction: 0, beyond: false },
        }
    }
}

impl fmt::Display for Decimal {
    /// Of a bound, which has no digits beyond.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, whole, fraction) = match (self.whole, self.fraction) {
            (0.., fraction) => ("", self.whole, fraction),
            (whole, 0) => ("-", -whole, 0),
            (whole, fraction) => ("-", -(whole + 1), UNIT - fraction),
        };
        write!(f, "{sign}{whole}")?;
        if fraction > 0 {
            write!(f, ".{}", format!("{fraction:018}").trim_end_matches('0'))?;
        }
        Ok(())
    }
}

/// Whether two texts write the same number, to the last digit.
pub(crate) fn is_same_number(one: &str, other: &str) -> bool {
    match (Written::of(one), Written::of(other)) {
        (Some(one), Some(other)) => {
            let digits = |written: &Written<'_>| {
                let mut digits: Vec<i64> = written.digits().collect();
                digits.truncate(digits.iter().rposition(|digit| *digit != 0).map_or(0, |last| last + 1));
                digits
            };
            let is_zero = one.point.is_none();
            one.point == other.point && (is_zero || one.negative == other.negative) && digits(&one) == digits(&other)
        }
        _ => false,
    }
}

/// The parts of a number's text.
struct Written<'a> {
    negative: bool,
    before: &'a str,
    after: &'a str,
    /// How many digits stand before the point, counted from the first that is not 0: negative if zeros follow the point.
    /// `None` for zero.
    point: Option<i64>,
}

impl<'a> Written<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
        let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
        let exponent_digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        let plain = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if ![before, after, exponent_digits].into_iter().all(plain) {
            return None;
        }
        // An exponent of more digits than fit is far beyond any number, in one direction or the other.
        let far = if exponent.starts_with('-') { -FAR } else { FAR };
        let exponent = exponent.parse::<i64>().map_or(far, |exponent| exponent.clamp(-FAR, FAR));
        let mut written = Self { negative: text.starts_with('-'), before, after, point: None };
        let length = |digits: &str| i64::try_from(digits.len()).ok();
        let zeros = (written.all().position(|digit| digit != 0)).map(i64::try_from).transpose().ok()?;
        written.point = match zeros {
            None => None,
            Some(zeros) => Some(length(before)? + exponent - zeros),
        };
        Some(written)
    }

    fn all(&self) -> impl Iterator<Item = i64> + use<'a> {
        self.before.bytes().chain(self.after.bytes()).map(|byte| i64::from(byte - b'0'))
    }

    /// The digits from the first that is not 0.
    fn digits(&self) -> impl Iterator<Item = i64> + use<'a> {
        self.all().skip_while(|digit| *digit == 0)
    }
}

/// Larger than any exponent that matters, and small enough to compute with.
const FAR: i64 = 1 << 40;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    fn order(one: &str, other: &str) -> std::cmp::Ordering {
        Decimal::parse(one).unwrap().cmp(&Decimal::bound(other).unwrap())
    }

    #[test]
    fn numbers_are_ordered_as_written() {
        use std::cmp::Ordering::{Equal, Greater, Less};
        for (number, bound, expected) in [
            ("5", "5", Equal),
            ("5.0", "5", Equal),
            ("50e-1", "5.0", Equal),
            ("0.5E1", "5", Equal),
            ("5.000000000000000000000000000000001", "5", Greater),
            ("4.999999999999999999999999999999999", "5", Less),
            ("-0.0", "0", Equal),
            ("-0", "0", Equal),
            ("0e999999999999999999999", "0", Equal),
            ("1e-400", "0", Greater),
            ("-1e-400", "0", Less),
            ("-1e-99999999999999999999", "0", Less),
            ("0.1", "0.1", Equal),
            // What a double makes of 0.1, and what it makes of 0.1 + 0.2.
            ("0.1000000000000000055511151231257827", "0.1", Greater),
            ("0.30000000000000004", "0.3", Greater),
            ("9007199254740993", "9007199254740992", Greater),
            ("-1.5", "-1.5", Equal),
            ("-1.50000000000000000000001", "-1.5", Less),
            ("-1.49999999999999999999999", "-1.5", Greater),
            ("1e300", "999999999999999999", Greater),
            ("-1e300", "-999999999999999999", Less),
            ("1000000000000000000", "999999999999999999.999999999999999999", Greater),
            ("999999999999999999.9999999999999999999", "999999999999999999.999999999999999999", Greater),
        ] {
            assert_eq!(order(number, bound), expected, "{number} {bound}");
        }
    }

    #[test]
    fn what_is_no_number_that_a_double_can_hold_is_none() {
        for text in [
            "", "-", "1e400", "-1e400", "NaN", "inf", "Infinity", "1e", "1.", ".5", "0x10", "1 ", "--1", "1e1.5", "1_0",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
        for text in ["1000000000000000000", "0.0000000000000000001", "1e18", "-1e18"] {
            assert!(Decimal::parse(text).is_some() && Decimal::bound(text).is_none(), "{text}");
        }
    }

    #[test]
    fn bounds_are_shown_as_plain_decimals() {
        for (text, shown) in [
            ("5", "5"),
            ("5.0", "5"),
            ("1e3", "1000"),
            ("-0.0", "0"),
            ("-0.25", "-0.25"),
            ("-3", "-3"),
            ("1e-18", "0.000000000000000001"),
        ] {
            assert_eq!(Decimal::bound(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn same_numbers_are_told_from_similar_ones() {
        for (one, other, same) in [
            ("1", "1.0", true),
            ("10", "1e1", true),
            ("0", "-0.000", true),
            ("1e-20", "0.00000000000000000001", true),
            ("1e-20", "2e-20", false),
            ("1", "-1", false),
            ("1e400", "1e401", false),
            ("0.1", "0.1000000000000000055", false),
        ] {
            assert_eq!(is_same_number(one, other), same, "{one} {other}");
        }
    }

    proptest! {
        /// Scaled to integers of 128 bits, the order is known.
        #[test]
        fn the_order_is_that_of_scaled_integers(one in -10_i128.pow(36)..10_i128.pow(36), other in -10_i128.pow(36)..10_i128.pow(36)) {
            let text = |value: i128| {
                let (whole, fraction) = (value.unsigned_abs() / 10_u128.pow(18), value.unsigned_abs() % 10_u128.pow(18));
                format!("{}{whole}.{fraction:018}", if value < 0 { "-" } else { "" })
            };
            let (left, right) = (Decimal::bound(&text(one)).unwrap(), Decimal::bound(&text(other)).unwrap());
            prop_assert_eq!(left.cmp(&right), one.cmp(&other));
            prop_assert_eq!(Decimal::bound(&left.to_string()), Some(left));
        }
    }
}
