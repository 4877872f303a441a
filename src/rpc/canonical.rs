//! The canonical text of a JSON value (RFC 8785, JCS), over which digests and signatures are made.
//! Never rounds: a number that the text cannot represent exactly is refused.

use serde_json::{Map, Number, Value};

/// Why a value has no canonical form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CanonicalError {
    /// RFC 8785 §3.2.2.3: numbers are those of IEEE 754.
    #[error("the number {0} cannot be represented exactly: integers go up to 2^53")]
    Number(String),
}

/// The canonical text of a value (RFC 8785 §3.2).
///
/// # Errors
/// [`CanonicalError`]: the value contains a number that the text cannot represent exactly.
pub fn canonical(value: &Value) -> Result<String, CanonicalError> {
    let mut text = String::new();
    write(value, &mut text)?;
    Ok(text)
}

fn write(value: &Value, text: &mut String) -> Result<(), CanonicalError> {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        Value::Number(value) => text.push_str(&number(value)?),
        Value::String(value) => string(value, text),
        Value::Array(items) => {
            text.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    text.push(',');
                }
                write(item, text)?;
            }
            text.push(']');
        }
        Value::Object(members) => object(members, text)?,
    }
    Ok(())
}

fn object(members: &Map<String, Value>, text: &mut String) -> Result<(), CanonicalError> {
    // RFC 8785 §3.2.3: by their UTF-16 code units.
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_by(|(left, _), (right, _)| left.encode_utf16().cmp(right.encode_utf16()));
    text.push('{');
    for (position, (name, value)) in sorted.into_iter().enumerate() {
        if position > 0 {
            text.push(',');
        }
        string(name, text);
        text.push(':');
        write(value, text)?;
    }
    text.push('}');
    Ok(())
}

/// RFC 8785 §3.2.2.2: the short escapes where they exist, as `serde_json` writes them.
fn string(value: &str, text: &mut String) {
    text.push_str(&Value::from(value).to_string());
}

/// RFC 8785 §3.2.2.3: as ECMAScript writes numbers.
fn number(value: &Number) -> Result<String, CanonicalError> {
    const EXACT: u64 = 1 << 53;
    if let Some(integer) = value.as_i64() {
        return if integer.unsigned_abs() <= EXACT { Ok(integer.to_string()) } else { refused(value) };
    }
    let Some(float) = value.as_f64().filter(|float| float.is_finite() && !value.is_u64()) else {
        return refused(value);
    };
    if float == 0.0 {
        return Ok("0".to_owned());
    }
    // The shortest digits that parse back to the same number, as ECMAScript requires.
    let shortest = format!("{:e}", float.abs());
    // Of two equally close candidates the even one is required, which is what rounding to that many digits gives.
    let digits = shortest.split_once('e').map_or(1, |(mantissa, _)| mantissa.replace('.', "").len());
    let even = format!("{:.*e}", digits.saturating_sub(1), float.abs());
    let text =
        if even.parse::<f64>().is_ok_and(|read| read.to_bits() == float.abs().to_bits()) { even } else { shortest };
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = mantissa.replace('.', "");
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
    let split = |at: i32| digits.split_at(usize::try_from(at).unwrap_or(0).min(digits.len()));
    let unsigned = match exponent {
        0..=20 if count <= exponent + 1 => format!("{digits}{}", zeros(exponent + 1 - count)),
        0..=20 => {
            let (whole, rest) = split(exponent + 1);
            format!("{whole}.{rest}")
        }
        -6..=-1 => format!("0.{}{digits}", zeros(-exponent - 1)),
        _ => {
            let (first, rest) = split(1);
            let point = if rest.is_empty() { "" } else { "." };
            let sign = if exponent < 0 { "" } else { "+" };
            format!("{first}{point}{rest}e{sign}{exponent}")
        }
    };
    Ok(if float < 0.0 { format!("-{unsigned}") } else { unsigned })
}

fn refused(value: &Number) -> Result<String, CanonicalError> {
    Err(CanonicalError::Number(value.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// RFC 8785 appendix B: the bits of a number, and its text.
    const NUMBERS: &[(u64, &str)] = &[
        (0x0000_0000_0000_0000, "0"),
        (0x8000_0000_0000_0000, "0"),
        (0x0000_0000_0000_0001, "5e-324"),
        (0x8000_0000_0000_0001, "-5e-324"),
        (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
        (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
        (0x4340_0000_0000_0000, "9007199254740992"),
        (0xc340_0000_0000_0000, "-9007199254740992"),
        (0x4430_0000_0000_0000, "295147905179352830000"),
        (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
        (0x44b5_2d02_c7e1_4af6, "1e+23"),
        (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
        (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
        (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
        (0x444b_1ae4_d6e2_ef50, "1e+21"),
        (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
        (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
        (0x41b3_de43_5555_5553, "333333333.3333332"),
        (0x41b3_de43_5555_5554, "333333333.33333325"),
        (0x41b3_de43_5555_5555, "333333333.3333333"),
        (0x41b3_de43_5555_5556, "333333333.3333334"),
        (0x41b3_de43_5555_5557, "333333333.33333343"),
        (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
        (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
    ];

    #[test]
    fn numbers_are_written_as_rfc_8785_appendix_b_has_them() {
        for (bits, text) in NUMBERS {
            let value = Value::from(f64::from_bits(*bits));
            assert_eq!(canonical(&value).unwrap(), *text, "{bits:x}");
        }
        // A number that a 64-bit float cannot represent is refused, not rounded.
        for beyond in ["9007199254740993", "-9007199254740993", "18446744073709551615"] {
            assert!(canonical(&serde_json::from_str(beyond).unwrap()).is_err(), "{beyond}");
        }
    }

    #[test]
    fn members_are_sorted_by_their_utf_16_units_as_in_rfc_8785_section_3_2_3() {
        let value = serde_json::json!({
            "\u{20ac}": "Euro Sign", "\r": "Carriage Return", "\u{fb33}": "Hebrew Letter Dalet With Dagesh", "1": "One",
            "\u{1f600}": "Emoji: Grinning Face", "\u{80}": "Control", "\u{f6}": "Latin Small Letter O With Diaeresis",
        });
        let text = canonical(&value).unwrap();
        let places =
            ["Return", "One", "Control", "Latin", "Euro", "Emoji", "Hebrew"].map(|name| text.find(name).unwrap());
        assert!(places.is_sorted(), "{text}");
    }

    #[test]
    fn literals_and_texts_are_those_of_rfc_8785_section_3_2_2() {
        let value = serde_json::json!({
            "numbers": [333_333_333.333_333_3, 1e30, 4.50, 2e-3, 0.000_000_000_000_000_000_000_000_001],
            "string": "\u{20ac}$\u{f}\u{a}A'\u{42}\u{22}\u{5c}\\\"/",
            "literals": [null, true, false],
        });
        let text = concat!(
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"#,
            r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
        assert_eq!(canonical(&value).unwrap(), text);
    }
}
