//! The variables of OpenTelemetry that count. docs/observability.md lists them.
//! Never shows a value that may be a secret.

use std::time::Duration;

/// Reads variables. An empty one counts as none, as OpenTelemetry has it.
pub(super) struct Environment<'e>(pub(super) &'e dyn Fn(&str) -> Option<String>);

/// What is wrong with a variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}`: {wrong}")]
pub struct EnvironmentFault {
    name: &'static str,
    wrong: String,
}

impl EnvironmentFault {
    pub(super) fn new(name: &'static str, wrong: impl Into<String>) -> Self {
        Self { name, wrong: wrong.into() }
    }
}

impl Environment<'_> {
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.0(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// The first that is set, and its name.
    pub(super) fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| Some((*name, self.text(name)?)))
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.text(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// A number within a range.
    pub(super) fn number(
        &self,
        names: &[&'static str],
        (least, most): (u64, u64),
    ) -> Result<Option<u64>, EnvironmentFault> {
        let Some((name, text)) = self.first(names) else { return Ok(None) };
        match text.parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => Err(EnvironmentFault::new(name, format!("write a whole number from {least} to {most}"))),
        }
    }

    /// Milliseconds, of which there may be no more than a minute's.
    pub(super) fn time(&self, names: &[&'static str]) -> Result<Option<Duration>, EnvironmentFault> {
        Ok(self.number(names, (1, 60_000))?.map(Duration::from_millis))
    }

    /// `name=value,name=value`, with percent-encoded values.
    pub(super) fn list(&self, names: &[&'static str]) -> Result<Vec<(String, String)>, EnvironmentFault> {
        let Some((name, text)) = self.first(names) else { return Ok(Vec::new()) };
        let wrong =
            || EnvironmentFault::new(name, "write name=value, with commas between several, and %2C for a comma");
        let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
        members
            .map(|member| {
                let (name, value) = member.split_once('=').ok_or_else(wrong)?;
                Ok((name.trim().to_owned(), decoded(value.trim()).ok_or_else(wrong)?))
            })
            .collect()
    }
}

/// Without percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_list_is_read_as_opentelemetry_writes_it_and_a_fault_shows_nothing_of_it() {
        let read = |text: &str| Environment(&|_| Some(text.to_owned())).list(&["OTEL_X"]);
        assert_eq!(read(" a=1 , b=x%20y%2Cz,, ").unwrap(), [("a".into(), "1".into()), ("b".into(), "x y,z".into())]);
        assert_eq!(read("").unwrap(), []);
        for wrong in ["hunter2", "a=%4", "a=%zz", "a=%ff"] {
            let fault = read(wrong).unwrap_err();
            assert!(
                format!("{fault} {fault:?}").contains("OTEL_X") && !format!("{fault} {fault:?}").contains("hunter2")
            );
        }
    }

    #[test]
    fn numbers_have_a_range() {
        let read = |text: &str| Environment(&|_| Some(text.to_owned())).time(&["OTEL_X"]);
        assert_eq!(read("250").unwrap(), Some(Duration::from_millis(250)));
        for wrong in ["0", "-1", "1s", "60001", "99999999999999999999"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
