//! A NATS connection below the client library: it sends the bytes that a test wants on the wire, well-formed or not.
//! Never repairs or refuses what it is told to send.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::{SOON, within};

/// A publisher that speaks the NATS protocol itself.
#[derive(Debug)]
pub struct RawConnection {
    stream: BufReader<TcpStream>,
    /// The server's greeting: the JSON text after `INFO`.
    pub info: String,
}

impl RawConnection {
    /// Connects to `nats://127.0.0.1:port`, as `(user, password)` if given. Returns when the server has accepted that.
    ///
    /// # Panics
    /// When the server cannot be reached or refuses the user.
    pub async fn connect(url: &str, user: Option<(&str, &str)>) -> Self {
        let raw = Self::connect_with(url, |connect, _| {
            if let Some((name, password)) = user {
                connect["user"] = name.into();
                connect["pass"] = password.into();
            }
        });
        raw.await.unwrap_or_else(|errors| panic!("{errors:?}"))
    }

    /// As [`connect`](Self::connect), for a user with a key pair (an nkey seed).
    ///
    /// # Errors
    /// What the server says if it refuses the user.
    pub async fn connect_as(url: &str, seed: &str) -> Result<Self, Vec<String>> {
        let pair = nkeys::KeyPair::from_seed(seed).unwrap();
        Self::connect_with(url, |connect, info| {
            let info: serde_json::Value = serde_json::from_str(info).unwrap();
            let signature = pair.sign(info["nonce"].as_str().unwrap().as_bytes()).unwrap();
            connect["nkey"] = pair.public_key().into();
            connect["sig"] = URL_SAFE_NO_PAD.encode(signature).into();
        })
        .await
    }

    /// Connects as the user of a `.creds` file.
    ///
    /// # Errors
    /// What the server says if it refuses the user.
    pub async fn connect_with_creds(url: &str, creds: &str) -> Result<Self, Vec<String>> {
        let (jwt, seed) = crate::operator::parts(creds);
        let pair = nkeys::KeyPair::from_seed(&seed).unwrap();
        Self::connect_with(url, |connect, info| {
            let info: serde_json::Value = serde_json::from_str(info).unwrap();
            let signature = pair.sign(info["nonce"].as_str().unwrap().as_bytes()).unwrap();
            connect["jwt"] = jwt.into();
            connect["sig"] = URL_SAFE_NO_PAD.encode(signature).into();
        })
        .await
    }

    async fn connect_with(url: &str, login: impl FnOnce(&mut serde_json::Value, &str)) -> Result<Self, Vec<String>> {
        let address = url.strip_prefix("nats://").expect("a nats:// URL");
        let stream = within(LIMIT, TcpStream::connect(address)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut raw = Self { stream: BufReader::new(stream), info: String::new() };
        let greeting = raw.line().await;
        raw.info = greeting.strip_prefix("INFO ").expect("INFO comes first").trim().to_owned();
        let mut connect = serde_json::json!({
            "verbose": false, "pedantic": false, "lang": "raw", "version": "0", "protocol": 1,
            "headers": true, "no_responders": true,
        });
        login(&mut connect, &raw.info);
        raw.send(format!("CONNECT {connect}\r\n").as_bytes()).await;
        let errors = raw.flush().await;
        if errors.is_empty() { Ok(raw) } else { Err(errors) }
    }

    /// Publishes with this header block unchanged: version line, fields and the closing empty line are up to the caller.
    pub async fn hpub_raw(&mut self, subject: &str, reply: Option<&str>, headers: &[u8], payload: &[u8]) {
        let reply = reply.map(|reply| format!("{reply} ")).unwrap_or_default();
        let (head, total) = (headers.len(), headers.len() + payload.len());
        let line = format!("HPUB {subject} {reply}{head} {total}\r\n");
        self.send(&[line.as_bytes(), headers, payload, b"\r\n"].concat()).await;
    }

    /// Publishes without headers.
    pub async fn publish(&mut self, subject: &str, reply: Option<&str>, payload: &[u8]) {
        let reply = reply.map(|reply| format!("{reply} ")).unwrap_or_default();
        let line = format!("PUB {subject} {reply}{}\r\n", payload.len());
        self.send(&[line.as_bytes(), payload, b"\r\n"].concat()).await;
    }

    /// Publishes poison at `per_second` for `time`: every kind in turn, every other one with a reply subject, to the subjects that `to`
    /// names for each. Returns how many were sent, which is the full number whatever else the machine does.
    pub async fn flood(&mut self, per_second: u32, time: Duration, mut to: impl FnMut() -> (String, String)) -> u64 {
        let started = Instant::now();
        let (mut sent, mut kinds) = (0_u64, poison().into_iter().cycle());
        loop {
            let elapsed = started.elapsed().min(time);
            let due = (elapsed.as_secs_f64() * f64::from(per_second)) as u64;
            let mut bytes = Vec::new();
            for (_, block) in kinds.by_ref().take(usize::try_from(due - sent).unwrap()) {
                let (subject, reply) = to();
                let reply = if sent % 2 == 0 { format!("{reply} ") } else { String::new() };
                let (head, total) = (block.len(), block.len() + 1);
                bytes.extend_from_slice(format!("HPUB {subject} {reply}{head} {total}\r\n").as_bytes());
                bytes.extend_from_slice(&block);
                bytes.extend_from_slice(b"x\r\n");
                sent += 1;
            }
            self.send(&bytes).await;
            if elapsed == time {
                assert!(self.flush().await.is_empty(), "the broker takes all of it");
                return sent;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Subscribes, to see whether the server permits it; what arrives is ignored.
    pub async fn subscribe(&mut self, subject: &str, queue: Option<&str>) {
        let queue = queue.map(|queue| format!("{queue} ")).unwrap_or_default();
        self.send(format!("SUB {subject} {queue}{}\r\n", subject.len()).as_bytes()).await;
    }

    /// Sends any bytes of the protocol.
    pub async fn send(&mut self, bytes: &[u8]) {
        within(LIMIT, self.stream.get_mut().write_all(bytes)).await.unwrap();
    }

    /// Waits until the server has handled all that was sent, and answers its pings meanwhile.
    /// Returns the `-ERR` lines that it sent, such as permission violations; the last is why it hung up, if it did.
    pub async fn flush(&mut self) -> Vec<String> {
        self.send(b"PING\r\n").await;
        let mut errors = Vec::new();
        loop {
            let line = self.line().await;
            match line.trim() {
                "PONG" => return errors,
                "PING" => self.send(b"PONG\r\n").await,
                "" => {
                    errors.push("the server hung up".to_owned());
                    return errors;
                }
                line if line.starts_with("-ERR") => errors.push(line.to_owned()),
                // INFO updates and +OK.
                _ => {}
            }
        }
    }

    /// The next line of the server; empty once it has hung up.
    pub async fn line(&mut self) -> String {
        let mut line = Vec::new();
        // A connection that the server reset counts as ended, too.
        let _ = within(LIMIT, self.stream.read_until(b'\n', &mut line)).await;
        String::from_utf8_lossy(&line).into_owned()
    }
}

/// Header blocks that the server passes on unchecked and that async-nats 0.51 cannot read, each with its name.
///
/// The first ends the client's connection task for good, without an event; the others cost it the connection each time.
pub fn poison_headers() -> [(&'static str, &'static [u8]); 9] {
    [
        ("a carriage return within a value", b"NATS/1.0\r\nA: b\rc\r\n\r\n"),
        ("a byte that is not UTF-8", b"NATS/1.0\r\nA: \xff\r\n\r\n"),
        ("a line without a colon", b"NATS/1.0\r\nabc\r\n\r\n"),
        ("a space in a name", b"NATS/1.0\r\nA b: c\r\n\r\n"),
        ("a status that is no number", b"NATS/1.0 abc\r\n\r\n"),
        ("a status of five digits", b"NATS/1.0 50333\r\n\r\n"),
        ("an unknown version", b"NATS/9.9\r\nA: b\r\n\r\n"),
        ("no version line", b"A: b\r\n\r\n"),
        ("an empty block", b"\r\n"),
    ]
}

/// The ones above, and header blocks that a lenient reader joins, trims or skips.
pub fn poison() -> Vec<(&'static str, Vec<u8>)> {
    let more: [(&str, &[u8]); 8] = [
        ("a folded line", b"NATS/1.0\r\nAuthorization: NatsRpc\r\n a.b.c~d.e.f\r\n\r\n"),
        ("a blank at the end of a value", b"NATS/1.0\r\nAuthorization: NatsRpc a.b.c~d.e.f \r\n\r\n"),
        ("a blank before the colon", b"NATS/1.0\r\nAuthorization : NatsRpc a.b.c~d.e.f\r\n\r\n"),
        ("line feeds alone", b"NATS/1.0\nAuthorization: NatsRpc a.b.c~d.e.f\n\n"),
        ("no empty line at the end", b"NATS/1.0\r\nAuthorization: NatsRpc a.b.c~d.e.f\r\n"),
        ("a status", b"NATS/1.0 503\r\n\r\n"),
        ("a null byte", b"NATS/1.0\r\nA: \0\r\n\r\n"),
        ("nothing but carriage returns", b"\r\r\r\r"),
    ];
    let many = [b"NATS/1.0\r\n".as_slice(), &b"a:\r\n".repeat(1_000), b"\r\n"].concat();
    let mut all: Vec<_> =
        poison_headers().into_iter().chain(more).map(|(name, block)| (name, block.to_vec())).collect();
    all.push(("a thousand lines", many));
    all
}

const LIMIT: Duration = SOON;
