//! Lines on standard input and output, on threads of their own, because reading and writing them blocks.
//! Never holds more than one line of either, nor a line longer than [`MAX_LINE`].

use std::io::{self, BufRead as _, Read as _, Write as _};

use tokio::sync::mpsc;

use crate::mcp::Line;

/// The longest line in bytes: 1 MiB.
pub const MAX_LINE: usize = 1 << 20;

/// The lines of standard input. Its thread ends with the process.
///
/// # Errors
/// The operating system cannot start the thread.
pub fn input() -> io::Result<mpsc::Receiver<io::Result<Vec<u8>>>> {
    let (lines, read) = mpsc::channel(1);
    std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let line = next(&mut stdin);
            let is_last = !matches!(line, Ok(Some(_)));
            if let Some(line) = line.transpose()
                && lines.blocking_send(line).is_err()
            {
                return;
            }
            if is_last {
                return;
            }
        }
    })?;
    Ok(read)
}

/// The next line, without its line break; `None` at the end of the input.
fn next(input: &mut impl io::BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let most = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
    input.by_ref().take(most + 1).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > MAX_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is longer than 1 MiB"));
    }
    Ok(Some(line))
}

/// Writes lines to standard output until there are no more, or the reader has gone. Its thread ends with the process.
///
/// # Errors
/// The operating system cannot start the thread.
pub fn output(mut lines: mpsc::Receiver<Line>) -> io::Result<()> {
    std::thread::Builder::new().name("stdout".to_owned()).spawn(move || {
        let mut stdout = io::stdout().lock();
        while let Some(line) = lines.blocking_recv() {
            if stdout.write_all(line.text()).and_then(|()| stdout.flush()).is_err() {
                return;
            }
        }
    })?;
    Ok(())
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
            assert_eq!(next(&mut input).unwrap().unwrap(), expected.as_bytes());
        }
        assert_eq!(next(&mut input).unwrap(), None);
        let mut long = io::Cursor::new([b"x".repeat(MAX_LINE + 1), b"\n".to_vec()].concat());
        assert_eq!(next(&mut long).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
