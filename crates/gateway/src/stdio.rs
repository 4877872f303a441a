//! Lines on standard input and output, on threads of their own, because reading and writing them blocks.
//! Never holds more than one line of either, nor a line longer than [`MAX_LINE`].

use std::io::{self, BufRead as _, Read as _, Write as _};

use tokio::sync::{mpsc, oneshot};

use crate::mcp::Line;

pub use sealwire_mcp::MAX_LINE;

/// The lines of standard input, with `None` in place of one longer than [`MAX_LINE`], which is skipped. Its thread ends with the process.
///
/// # Errors
/// The operating system cannot start the thread.
pub fn lines() -> io::Result<mpsc::Receiver<io::Result<Option<Vec<u8>>>>> {
    let (lines, read) = mpsc::channel(1);
    std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let Some(line) = next(&mut stdin).transpose() else { return };
            let is_last = line.is_err();
            if lines.blocking_send(line).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok(read)
}

/// Skips the rest of a line.
fn skip(input: &mut impl io::BufRead) -> io::Result<()> {
    loop {
        let some = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            some => some?,
        };
        let end = some.iter().position(|byte| *byte == b'\n');
        let (is_last, length) = (end.is_some() || some.is_empty(), end.map_or(some.len(), |end| end + 1));
        input.consume(length);
        if is_last {
            return Ok(());
        }
    }
}

/// The next line, without its line break; `Some(None)` for one that is too long, and `None` at the end of the input.
fn next(input: &mut impl io::BufRead) -> io::Result<Option<Option<Vec<u8>>>> {
    let mut line = Vec::new();
    let most = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
    input.by_ref().take(most + 1).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > MAX_LINE {
        skip(input)?;
        return Ok(Some(None));
    }
    Ok(Some(Some(line)))
}

/// Writes lines to standard output until there are no more, or they cannot be written; what it returns completes then. Its thread ends with
/// the process.
///
/// # Errors
/// The operating system cannot start the thread.
pub fn output(mut lines: mpsc::Receiver<Line>) -> io::Result<oneshot::Receiver<io::Result<()>>> {
    let (end, ended) = oneshot::channel();
    std::thread::Builder::new().name("stdout".to_owned()).spawn(move || {
        let mut stdout = io::stdout().lock();
        let mut written = Ok(());
        while written.is_ok()
            && let Some(line) = lines.blocking_recv()
        {
            written = stdout.write_all(line.text()).and_then(|()| stdout.flush());
        }
        // Fails if nobody waits.
        let _ = end.send(written);
    })?;
    Ok(ended)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn lines_are_whole_and_never_too_long() {
        let longest = "x".repeat(MAX_LINE);
        let text = format!("one\n\n{longest}\nlast");
        let mut input = text.as_bytes();
        for expected in ["one", "", &longest, "last"] {
            assert_eq!(next(&mut input).unwrap().flatten().unwrap(), expected.as_bytes());
        }
        assert_eq!(next(&mut input).unwrap(), None);
        for more in [0, 1, 20_000] {
            let mut long = io::Cursor::new([b"x".repeat(MAX_LINE + 1 + more), b"\nafter".to_vec()].concat());
            assert_eq!(next(&mut long).unwrap(), Some(None));
            assert_eq!(next(&mut long).unwrap().flatten().unwrap(), b"after");
            assert_eq!(next(&mut long).unwrap(), None);
        }
    }
}
