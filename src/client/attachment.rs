//! Arguments that are larger than a message: the params name them by digest, and the method gets them part by part when it asks for them
//! (SPEC.md §25.6).
//! Never gives bytes to a call that they were not attached to.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::to_raw_value;
use sha2::{Digest as _, Sha256};

use super::stream_options::Asked;
use crate::jose::{b64, sha256_b64};
use crate::rpc::{Outcome, Params, RpcError, code};

/// An argument that is larger than a message. As a parameter it is `{"sha256": …, "size": …, "type": …}`, about which the service's policy
/// can decide before it asks for a byte. [`RequestBuilder::attach`](super::RequestBuilder::attach) makes the bytes available to the method
/// of that call, and to nobody else. Clones share them.
///
/// ```no_run
/// # use sealwire::call::Attachment;
/// # use sealwire::Client;
/// # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let report = Attachment::file("application/pdf", "report.pdf").await?;
/// let pages: u64 = client.request("archive").attach(&report).call("archive/store", (&report,)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Attachment {
    sha256: String,
    size: u64,
    media_type: String,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Bytes(Bytes),
    /// The file that was digested, whatever its name refers to by now.
    File(Arc<Mutex<File>>),
}

/// Which bytes the method asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    sha256: String,
    offset: u64,
    length: u64,
}

/// The most bytes that one answer holds: SPEC.md §25.6.
const MOST: u64 = 96 * 1024;

impl Attachment {
    /// An attachment of these bytes. `media_type` is in lower case and without parameters: `application/pdf`.
    #[must_use]
    pub fn bytes(media_type: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Self { sha256: sha256_b64(&bytes), size, media_type: media_type.into(), source: Source::Bytes(bytes) }
    }

    /// An attachment of a regular file. It is read once now, for its digest, and again in parts when the method asks for it. The file stays
    /// open as long as the attachment exists. If it changes meanwhile, the method gets nothing of it.
    ///
    /// # Errors
    /// The file system's error; [`io::ErrorKind::InvalidInput`] for anything but a regular file.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn file(media_type: impl Into<String>, path: impl AsRef<Path>) -> io::Result<Self> {
        let (path, media_type) = (path.as_ref().to_owned(), media_type.into());
        let opened = tokio::task::spawn_blocking(move || Self::open(media_type, &path)).await;
        opened.unwrap_or_else(|_| Err(io::Error::other("the file could not be read")))
    }

    fn open(media_type: String, path: &Path) -> io::Result<Self> {
        // Opening a pipe would wait for a writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut file = File::open(path)?;
        let (mut digest, mut size) = (Sha256::new(), 0_u64);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = file.read(&mut buffer)?;
            let Some(read) = buffer.get(..read).filter(|read| !read.is_empty()) else { break };
            digest.update(read);
            size += u64::try_from(read.len()).unwrap_or(u64::MAX);
        }
        let source = Source::File(Arc::new(Mutex::new(file)));
        Ok(Self { sha256: b64(digest.finalize()), size, media_type, source })
    }

    /// The digest of the bytes: SHA-256 in base64url, 43 characters.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The number of bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Answers a request for one part.
    async fn part(self, offset: u64, length: u64) -> Outcome {
        let within = offset.checked_add(length).is_some_and(|end| end <= self.size);
        if length == 0 || length > MOST || !within {
            return Err(RpcError::invalid_params("Invalid params: no such part of the attachment"));
        }
        let text = match self.source {
            Source::Bytes(bytes) => {
                let (from, to) = (usize::try_from(offset), usize::try_from(offset + length));
                from.ok().zip(to.ok()).and_then(|(from, to)| bytes.get(from..to)).map(b64)
            }
            Source::File(file) => {
                let read = tokio::task::spawn_blocking(move || read(&file, offset, length)).await;
                read.ok().and_then(Result::ok).map(b64)
            }
        };
        // A file that was cut short, for example.
        let text = text.ok_or_else(|| RpcError::invalid_params("Invalid params: this part cannot be read any more"))?;
        to_raw_value(&text).map_err(RpcError::internal)
    }
}

fn read(file: &Mutex<File>, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    // Clones share the file's position, so each read begins with a seek.
    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(SeekFrom::Start(offset))?;
    let mut part = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact(&mut part)?;
    Ok(part)
}

/// Answers questions about attachments, and leaves all others to `on_ask`. A call to which nothing is attached refuses them as well.
pub(super) fn serving(attached: Vec<Attachment>, on_ask: Option<Asked>) -> Asked {
    Arc::new(move |request| {
        if request.method != "rpc.attachment" {
            return match &on_ask {
                Some(on_ask) => on_ask(request),
                None => Box::pin(async { Err(RpcError::with_code(code::METHOD_NOT_FOUND, "Method not found")) }),
            };
        }
        // A program may also give its attachments by itself.
        if let (Some(on_ask), true) = (&on_ask, attached.is_empty()) {
            let answering = on_ask(request);
            return Box::pin(async move {
                answering.await.map_err(|error| match error.code() {
                    code::METHOD_NOT_FOUND => {
                        RpcError::invalid_params("Invalid params: nothing is attached to the call")
                    }
                    _ => error,
                })
            });
        }
        let named = request.params.as_ref().filter(|params| params.is_named());
        let by_name = || RpcError::invalid_params("Invalid params: `sha256`, `offset` and `length` are given by name");
        let found = named.ok_or_else(by_name).and_then(|params| Params::decode::<Question>(Some(params)));
        let found = found.and_then(|question| {
            let found = attached.iter().find(|attachment| attachment.sha256 == question.sha256).cloned();
            let unknown =
                || RpcError::invalid_params("Invalid params: nothing with this digest is attached to the call");
            Ok((found.ok_or_else(unknown)?, question))
        });
        Box::pin(async move {
            let (attachment, Question { offset, length, .. }) = found?;
            attachment.part(offset, length).await
        })
    })
}

/// As a parameter: the description, without the bytes.
impl Serialize for Attachment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Attachment", 3)?;
        object.serialize_field("sha256", &self.sha256)?;
        object.serialize_field("size", &self.size)?;
        object.serialize_field("type", &self.media_type)?;
        object.end()
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment")
            .field("sha256", &self.sha256)
            .field("size", &self.size)
            .field("media_type", &self.media_type)
            .finish_non_exhaustive()
    }
}
