//! `--attach`: files sent with a call as arguments that may be larger than a message.
//! Never reads a whole file into memory, and never gives it to anybody but the method of this call.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use sealwire::RequestBuilder;
use sealwire::call::Attachment;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files;
use crate::runtime::block_on;

/// One `--attach`.
#[derive(Debug, Clone)]
pub(super) struct Attach {
    name: String,
    path: PathBuf,
    media_type: String,
}

/// Parses the value of `--attach`: `NAME=FILE`, or `NAME=FILE;type=text/plain` as in curl.
pub(super) fn attach(text: &str) -> Result<Attach, String> {
    let (name, file) = text.split_once('=').unwrap_or((text, ""));
    let (path, media_type) = file.rsplit_once(";type=").unwrap_or((file, "application/octet-stream"));
    if name.is_empty() || path.is_empty() {
        return Err("write the name of a parameter and a file: document=report.pdf".to_owned());
    }
    Ok(Attach { name: name.to_owned(), path: path.into(), media_type: media_type.to_owned() })
}

/// The files of a call, opened and digested.
#[derive(Debug, Default)]
pub(super) struct Attached(Vec<(String, Attachment)>);

impl Attached {
    pub(super) fn open(wanted: &[Attach]) -> Result<Self, Failure> {
        if wanted.is_empty() {
            return Ok(Self::default());
        }
        let opened = block_on(async {
            let mut opened = Vec::new();
            for Attach { name, path, media_type } in wanted {
                let attachment = Attachment::file(media_type, path).await.map_err(|error| files::at(path, &error))?;
                opened.push((name.clone(), attachment));
            }
            Ok(opened)
        })?;
        opened.map(Self)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn to(&self, request: RequestBuilder) -> RequestBuilder {
        self.0.iter().fold(request, |request, (_, attachment)| request.attach(attachment))
    }

    /// The parameters with the attachments added. Those given on the command line stay exactly as written.
    pub(super) fn among(&self, params: Option<Box<RawValue>>) -> Result<Option<Box<RawValue>>, Failure> {
        if self.is_empty() {
            return Ok(params);
        }
        let mut text = params.as_ref().map_or("{}", |params| params.get()).trim().to_owned();
        let names: HashMap<String, IgnoredAny> = serde_json::from_str(&text).map_err(|_| {
            let failure =
                Failure::input("an attached file is a named parameter, but the parameters are given by position");
            failure.help("give them by name: '{\"title\": \"a report\"}'")
        })?;
        let mut names: HashSet<String> = names.into_keys().collect();
        for (name, attachment) in &self.0 {
            let separator = if names.is_empty() { "" } else { "," };
            if !names.insert(name.clone()) {
                return Err(Failure::input(format!("the parameter `{name}` is given twice: once attached")));
            }
            text.truncate(text.len().saturating_sub(1));
            let (key, value) = (serde_json::to_string(name), serde_json::to_string(attachment));
            let (key, value) = (key.or_fail(Exit::Bug)?, value.or_fail(Exit::Bug)?);
            text = format!("{text}{separator}{key}:{value}}}");
        }
        RawValue::from_string(text).map(Some).or_fail(Exit::Bug)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_file_may_be_named_with_its_media_type() {
        let plain = attach("document=a=b.pdf").unwrap();
        assert_eq!(
            (plain.name.as_str(), plain.path.to_str(), plain.media_type.as_str()),
            ("document", Some("a=b.pdf"), "application/octet-stream")
        );
        let typed = attach("document=a;type=b;type=text/plain").unwrap();
        assert_eq!((typed.path.to_str(), typed.media_type.as_str()), (Some("a;type=b"), "text/plain"));
        for wrong in ["", "document", "document=", "=file", "document=;type=text/plain"] {
            assert!(attach(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parameters_stay_as_they_were_written() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let attached = Attached(vec![
            ("a".to_owned(), Attachment::bytes("text/plain", "abc")),
            ("b\"".to_owned(), Attachment::bytes("a/b", "")),
        ]);
        let object =
            |digest: &str, size: u8, kind: &str| format!(r#"{{"sha256":"{digest}","size":{size},"type":"{kind}"}}"#);
        let abc = object("ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0", 3, "text/plain");
        let empty = object("47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", 0, "a/b");
        let both = attached.among(None).unwrap().unwrap();
        assert_eq!(both.get(), format!(r#"{{"a":{abc},"b\"":{empty}}}"#));
        let more = attached.among(Some(raw("{ \"x\": 1e2 }"))).unwrap().unwrap();
        assert_eq!(more.get(), format!(r#"{{ "x": 1e2 ,"a":{abc},"b\"":{empty}}}"#));
        assert!(attached.among(Some(raw("[1]"))).is_err());
        assert!(attached.among(Some(raw(r#"{"\u0061":1}"#))).is_err(), "the name is there");
        assert_eq!(Attached::default().among(Some(raw("[1]"))).unwrap().unwrap().get(), "[1]");
    }
}
