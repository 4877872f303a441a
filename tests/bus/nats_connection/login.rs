//! Logging in: users, tokens, nkeys, TLS, and the reasons for refusals.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sealwire::BusConfig;
use sealwire::errors::BusError;
use sealwire::internal::nats::library_options;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use zeroize::Zeroizing;

use super::{Event, OpenError, Options, eventually, open, open_with, subject, up};
use sealwire_testkit::{NatsServer, SOON, within};

fn secret(text: &str) -> Option<Zeroizing<String>> {
    Some(Zeroizing::new(text.to_owned()))
}

/// Whether the connection carries a message to itself.
async fn works(bus: &BusConfig) -> Result<(), OpenError> {
    let (connection, heard) = open(bus, vec![subject("a.>")]).await?;
    within(SOON, up(&connection).publish("a.b", "", b"", b"x")).await.unwrap();
    eventually("it comes back", || heard.count() == 1).await;
    Ok(())
}

async fn refused(bus: &BusConfig) -> BusError {
    match works(bus).await {
        Err(OpenError::Bus(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn user_and_password_let_in_and_wrong_ones_are_told() {
    let server = NatsServer::start_with("authorization { user: ann, password: s3cret }").await;
    let good = BusConfig { user: Some("ann".into()), password: secret("s3cret"), ..BusConfig::open(&server.url()) };
    works(&good).await.unwrap();
    for bad in [BusConfig { password: secret("wr0ng"), ..good.clone() }, BusConfig::open(&server.url())] {
        let error = refused(&bad).await;
        assert!(matches!(error, BusError::Refused { .. }), "{error}");
        assert!(!error.to_string().contains("wr0ng"), "{error}");
    }
}

#[tokio::test]
async fn token_lets_in() {
    let server = NatsServer::start_with("authorization { token: \"t0k\" }").await;
    works(&BusConfig { token: secret("t0k"), ..BusConfig::open(&server.url()) }).await.unwrap();
    let error = refused(&BusConfig { token: secret("other"), ..BusConfig::open(&server.url()) }).await;
    assert!(matches!(error, BusError::Refused { .. }), "{error}");
}

#[tokio::test]
async fn nkey_signs_the_broker_s_nonce() {
    let (pair, other) = (nkeys::KeyPair::new_user(), nkeys::KeyPair::new_user());
    let config = format!("authorization {{ users = [ {{ nkey: {} }} ] }}", pair.public_key());
    let server = NatsServer::start_with(&config).await;
    let with = |seed: &str| BusConfig { nkey_seed: secret(seed), ..BusConfig::open(&server.url()) };
    works(&with(&pair.seed().unwrap())).await.unwrap();
    assert!(matches!(refused(&with(&other.seed().unwrap())).await, BusError::Refused { .. }));
    let error = refused(&with("SUNOSEED")).await.to_string();
    assert!(error.contains("nkey seed") && !error.contains("SUNOSEED"), "{error}");
}

/// Certificates issued by their own authority.
pub(super) struct Certificates {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), pem("CERTIFICATE", issuer.der())).unwrap();
        Self { folder, issuer }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Certificate and key for these names.
    pub(super) fn issue(&self, file: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        self.issue_between(file, names, None)
    }

    /// The same, valid from the first day of one year to that of another.
    fn issue_between(&self, file: &str, names: &[&str], years: Option<(i32, i32)>) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        if let Some((from, until)) = years {
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(until, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let paths = (self.path(&format!("{file}.pem")), self.path(&format!("{file}.key")));
        std::fs::write(&paths.0, pem("CERTIFICATE", certificate.der())).unwrap();
        sealwire::internal::files::write_secret(&paths.1, &pem("PRIVATE KEY", &key.serialize_der()), true).unwrap();
        paths
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let base64 = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = base64.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

pub(super) fn tls((certificate, key): &(PathBuf, PathBuf), ca: Option<&Path>) -> String {
    let verify = ca.map(|ca| format!("ca_file: {ca:?}, verify: true,")).unwrap_or_default();
    format!("tls {{ cert_file: {certificate:?}, key_file: {key:?}, {verify} timeout: 5 }}")
}

#[tokio::test]
async fn tls_trusts_the_named_authority_alone_and_checks_the_host_name() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let server = NatsServer::start_with(&tls(&ours.issue("server", &["127.0.0.1"]), None)).await;
    for scheme in ["nats", "tls"] {
        let open = BusConfig::open(&format!("{scheme}://127.0.0.1:{}", server.port()));
        works(&BusConfig { tls_ca: Some(ours.path("ca.pem")), ..open.clone() }).await.unwrap();
        let error = refused(&BusConfig { tls_ca: Some(theirs.path("ca.pem")), ..open.clone() }).await;
        assert!(matches!(error, BusError::Tls { .. }), "{error}");
        // Nor did any of the system's authorities sign it.
        let error = refused(&open).await;
        assert!(matches!(error, BusError::Tls { .. }), "{error}");
        let error = refused(&BusConfig { tls_ca: Some(ours.path("none.pem")), ..open }).await;
        assert!(error.to_string().contains("`tls_ca` names a file that is not there"), "{error}");
    }
    let elsewhere = BusConfig::open(&format!("tls://localhost:{}", server.port()));
    let error = refused(&BusConfig { tls_ca: Some(ours.path("ca.pem")), ..elsewhere }).await;
    assert!(matches!(error, BusError::Tls { .. }) && error.to_string().contains("host name"), "{error}");
}

#[tokio::test]
async fn certificate_of_ours_is_shown_where_the_broker_asks_for_one() {
    let ours = Certificates::new();
    let ca = ours.path("ca.pem");
    let server = NatsServer::start_with(&tls(&ours.issue("server", &["127.0.0.1"]), Some(&ca))).await;
    let (certificate, key) = ours.issue("client", &["planner"]);
    let bare = BusConfig { tls_ca: Some(ca), ..BusConfig::open(&format!("tls://127.0.0.1:{}", server.port())) };
    let error = refused(&bare).await;
    assert!(matches!(error, BusError::Tls { .. }), "{error}");
    works(&BusConfig { tls_cert: Some(certificate.clone()), tls_key: Some(key), ..bare.clone() }).await.unwrap();
    // A file that contains no key: the error names the file, and nothing of its contents.
    sealwire::internal::files::write_secret(&ours.path("bad.key"), "hunter2", true).unwrap();
    let bad = BusConfig { tls_cert: Some(certificate), tls_key: Some(ours.path("bad.key")), ..bare };
    let error = refused(&bad).await.to_string();
    assert!(error.contains("bad.key") && !error.contains("hunter2"), "{error}");
}

/// What operators see when certificate, key or authority is not what it should be.
#[tokio::test]
async fn a_tls_file_that_cannot_be_used_is_named_with_what_is_in_it() {
    let ours = Certificates::new();
    let ca = ours.path("ca.pem");
    let server = NatsServer::start_with(&tls(&ours.issue("server", &["127.0.0.1"]), Some(&ca))).await;
    let (certificate, key) = ours.issue("client", &["planner"]);
    let (_, other) = ours.issue("other", &["other"]);
    let read = |path: &Path| std::fs::read(path).unwrap();
    let (certificate_text, key_text) = (read(&certificate), read(&key));
    let der = |text: &[u8]| {
        let lines: Vec<&str> =
            std::str::from_utf8(text).unwrap().lines().filter(|line| !line.starts_with('-')).collect();
        base64::engine::general_purpose::STANDARD.decode(lines.concat()).unwrap()
    };
    let wide = |text: &[u8]| [&b"\xff\xfe"[..], &text.iter().flat_map(|byte| [*byte, 0]).collect::<Vec<_>>()].concat();
    let marked = |text: &[u8]| [&b"\xEF\xBB\xBF"[..], text].concat();
    let crlf = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap().replace('\n', "\r\n").into_bytes();
    let encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n".to_vec();
    let bus = |certificate: &Path, key: &Path, ca: &Path| BusConfig {
        tls_ca: Some(ca.into()),
        tls_cert: Some(certificate.into()),
        tls_key: Some(key.into()),
        ..BusConfig::open(&format!("tls://127.0.0.1:{}", server.port()))
    };
    let (bad, bad_key) = (ours.path("bad.pem"), ours.path("bad.key"));
    for (what, bytes, fault) in [
        ("certificate", marked(&certificate_text), None),
        ("key", marked(&key_text), None),
        ("authority", marked(&read(&ca)), None),
        ("certificate", crlf(&certificate_text), None),
        ("key", crlf(&key_text), None),
        ("authority", crlf(&read(&ca)), None),
        ("certificate", der(&certificate_text), Some("openssl x509 -inform der")),
        ("authority", der(&read(&ca)), Some("openssl x509 -inform der")),
        ("key", der(&key_text), Some("openssl pkey -inform der")),
        ("key", b"\x30\x82\x00\x04\x02\x01\x03\x30".to_vec(), Some("openssl pkcs12")),
        ("certificate", wide(&certificate_text), Some("UTF-16")),
        ("key", wide(&key_text), Some("UTF-16")),
        ("certificate", key_text.clone(), Some("swapped")),
        ("authority", key_text.clone(), Some("a private key")),
        ("key", certificate_text.clone(), Some("swapped")),
        ("key", encrypted, Some("is encrypted")),
        ("key", read(&other), Some("different pairs")),
        ("certificate", Vec::new(), Some("empty")),
        ("key", Vec::new(), Some("empty")),
        ("authority", Vec::new(), Some("empty")),
        ("authority", b"hello".to_vec(), Some("no certificate in it")),
    ] {
        let is_key = what == "key";
        let place = if is_key { &bad_key } else { &bad };
        sealwire::internal::files::write_secret(place, "", true).unwrap();
        std::fs::write(place, bytes).unwrap();
        let bus = match what {
            "certificate" => bus(&bad, &key, &ca),
            "key" => bus(&certificate, &bad_key, &ca),
            _ => bus(&certificate, &key, &bad),
        };
        let Some(fault) = fault else {
            works(&bus).await.unwrap();
            continue;
        };
        let error = refused(&bus).await.to_string();
        assert!(error.contains(fault) && error.contains(place.to_str().unwrap()), "{what}: {error}");
    }
}

/// Each says what to do, and none only what the library calls it.
#[tokio::test]
async fn a_handshake_that_fails_says_why() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let ca = ours.path("ca.pem");
    let dated = |name: &str, from: i32, until: i32| ours.issue_between(name, &["127.0.0.1"], Some((from, until)));
    let asks = NatsServer::start_with(&tls(&ours.issue("server", &["127.0.0.1"]), Some(&ca))).await;
    let past = NatsServer::start_with(&tls(&dated("past", 2020, 2021), None)).await;
    let future = NatsServer::start_with(&tls(&dated("future", 2090, 2091), None)).await;
    let plain = NatsServer::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"INFO {\"headers\":true,\"tls_required\":true}\r\n").await.unwrap();
            drop(stream);
        }
    });
    let open =
        |port: u16| BusConfig { tls_ca: Some(ca.clone()), ..BusConfig::open(&format!("tls://127.0.0.1:{port}")) };
    let showing = |(certificate, key): (PathBuf, PathBuf)| BusConfig {
        tls_cert: Some(certificate),
        tls_key: Some(key),
        ..open(asks.port())
    };
    let foreign = BusConfig { tls_ca: Some(theirs.path("ca.pem")), ..open(asks.port()) };
    let named = BusConfig { urls: vec![format!("tls://localhost:{}", asks.port())], ..open(asks.port()) };
    let system = BusConfig { tls_ca: None, ..open(asks.port()) };
    for (bus, words) in [
        (open(plain.port()), &["does not speak TLS", "nats://"][..]),
        (BusConfig { urls: vec![plain.url()], ..open(plain.port()) }, &["does not speak TLS"]),
        (open(http), &["closed the connection", "TLS"]),
        (open(asks.port()), &["wants a certificate", "tls_cert", "tls_key"]),
        (showing(theirs.issue("stranger", &["x"])), &["refuses our certificate"]),
        (showing(dated("old", 2020, 2021)), &["old.pem", "not valid now", "expired"]),
        (showing(dated("new", 2090, 2091)), &["new.pem", "not valid now", "not valid yet"]),
        (foreign, &["signed by no authority", "tls_ca"]),
        (system, &["tls_ca"]),
        (named, &["host name", "127.0.0.1"]),
        (open(past.port()), &["has expired", "clock"]),
        (open(future.port()), &["not valid yet", "clock"]),
    ] {
        let error = refused(&bus).await.to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
        assert!(!error.contains("InvalidContentType") && !error.contains("received fatal alert"), "{error}");
    }
    // TLS where the broker wants it, though the address does not ask for it.
    works(&BusConfig {
        urls: vec![asks.url().replace("tls://", "nats://")],
        ..showing(ours.issue("client", &["planner"]))
    })
    .await
    .unwrap();
}

/// Our own connection and the client library's, at a broker that says nothing before TLS.
#[tokio::test]
async fn tls_comes_first_where_the_broker_wants_it() {
    let ours = Certificates::new();
    let files = ours.issue("server", &["127.0.0.1"]);
    let begins = |how: &str| tls(&files, None).replace("timeout: 5", &format!("timeout: 5, handshake_first: {how}"));
    // Whoever starts it waits for a greeting, which it gives after a moment only in this mode.
    let server = NatsServer::start_with(&begins("auto")).await;
    server.reload(&begins("true")).await;
    let address = format!("127.0.0.1:{}", server.port());
    let late = BusConfig { tls_ca: Some(ours.path("ca.pem")), ..BusConfig::open(&format!("tls://{address}")) };
    let error = refused(&late).await.to_string();
    assert!(error.contains("`tls_first`"), "{error}");
    for scheme in ["tls", "nats"] {
        let first = BusConfig { tls_first: true, urls: vec![format!("{scheme}://{address}")], ..late.clone() };
        works(&first).await.unwrap();
        let (options, addresses) = library_options(&first).unwrap();
        let client = within(SOON, options.connect(addresses)).await.unwrap();
        within(SOON, client.flush()).await.unwrap();
        // Nor did any of the system's authorities sign it.
        let error = refused(&BusConfig { tls_ca: None, ..first }).await;
        assert!(matches!(error, BusError::Tls { .. }), "{error}");
    }
    // At a broker without TLS, nothing is said but a handshake.
    let plain = NatsServer::start().await;
    let error = refused(&BusConfig { tls_first: true, ..BusConfig::open(&plain.url()) }).await;
    assert!(matches!(&error, BusError::Tls { .. }), "{error}");
}

#[tokio::test]
async fn tls_that_was_asked_for_is_never_left_out() {
    // The server says that it knows no TLS, and waits for a password in clear text.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"INFO {\"headers\":true,\"max_payload\":1000}\r\n").await.unwrap();
        let mut bytes = vec![0; 4096];
        let read = within(SOON, stream.read(&mut bytes)).await.unwrap();
        bytes.truncate(read);
        bytes
    });
    let ours = Certificates::new();
    let bus = BusConfig {
        user: Some("ann".into()),
        password: secret("s3cret"),
        tls_ca: Some(ours.path("ca.pem")),
        ..BusConfig::open(&format!("nats://127.0.0.1:{port}"))
    };
    let (error, heard) = tokio::join!(refused(&bus), heard);
    assert!(matches!(error, BusError::Tls { .. } | BusError::Unreachable { .. }), "{error}");
    let heard = heard.unwrap();
    assert_eq!(heard.first(), Some(&0x16), "a TLS handshake, not `CONNECT`");
    assert!(!String::from_utf8_lossy(&heard).contains("s3cret"));
}

#[tokio::test]
async fn what_comes_before_tls_is_not_taken_for_what_comes_through_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let greeting = b"INFO {\"headers\":true,\"tls_required\":true}\r\nPONG\r\nMSG a 1 1\r\nx\r\n";
        stream.write_all(greeting).await.unwrap();
        let mut rest = Vec::new();
        drop(stream.read_to_end(&mut rest).await);
    });
    let error = refused(&BusConfig::open(&format!("nats://127.0.0.1:{port}"))).await;
    assert!(matches!(&error, BusError::Tls { cause, .. } if cause.contains("before TLS")), "{error}");
}

#[tokio::test]
async fn whoever_is_no_broker_is_told_apart_from_nobody() {
    let error = refused(&BusConfig::open("nats://127.0.0.1:1")).await;
    assert!(matches!(error, BusError::Unreachable { .. }), "{error}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").await.unwrap();
        }
    });
    let error = refused(&BusConfig::open(&format!("nats://127.0.0.1:{port}"))).await.to_string();
    assert!(error.contains("NATS client protocol"), "{error}");
    assert!(matches!(refused(&BusConfig::default()).await, BusError::NoUrl));
    assert!(matches!(refused(&BusConfig::open("not a url")).await, BusError::Member { .. }));
}

#[tokio::test]
async fn forbidden_subjects_are_told_and_end_nothing() {
    let permissions = r#"permissions: { publish: ["a.>"], subscribe: ["a.>"] }"#;
    let config = format!("authorization {{ users = [ {{ user: ann, password: p, {permissions} }} ] }}");
    let server = NatsServer::start_with(&config).await;
    let bus = BusConfig { user: Some("ann".into()), password: secret("p"), ..BusConfig::open(&server.url()) };
    let both = || vec![subject("a.b"), subject("secret.>")];
    match open(&bus, both()).await {
        Err(OpenError::Forbidden(what)) => assert!(what.contains("secret."), "{what}"),
        other => panic!("{:?}", other.map(|_| ())),
    }
    let (connection, heard) =
        open_with(&bus, Options { required: false, ..Options::new("test", both()) }).await.unwrap();
    assert!(heard.has(|event| *event == Event::SubscribeForbidden("secret.>".into())));
    let session = up(&connection);
    session.publish("b.c", "", b"", b"x").await.unwrap();
    session.publish("a.b", "", b"", b"x").await.unwrap();
    assert!(within(SOON, session.flush()).await, "the connection goes on");
    assert!(heard.has(|event| *event == Event::PublishForbidden("b.c".into())));
    assert!(heard.count() == 1 && !heard.disconnected());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_spread_over_the_addresses() {
    let servers = [NatsServer::start().await, NatsServer::start().await];
    let clients = [servers[0].client().await, servers[1].client().await];
    // Which server a connection has chosen.
    let chosen = async |bus: &BusConfig| {
        let (_connection, heard) = open(bus, vec![subject("a")]).await.unwrap();
        for (number, client) in clients.iter().enumerate() {
            client.publish("a", number.to_string().into()).await.unwrap();
            client.flush().await.unwrap();
        }
        eventually("it hears its own", || heard.count() == 1).await;
        heard.payloads().concat()
    };
    let listed = BusConfig { urls: servers.iter().map(NatsServer::url).collect(), ..BusConfig::default() };
    // Sixty at the same one: once in 10^18 times.
    let mut at = std::collections::BTreeSet::new();
    for _ in 0..60 {
        at.insert(chosen(&listed).await);
        if at.len() == 2 {
            break;
        }
    }
    assert_eq!(at.into_iter().collect::<Vec<_>>(), ["0", "1"]);
    let ordered = BusConfig { no_randomize: true, ..listed };
    for _ in 0..10 {
        assert_eq!(chosen(&ordered).await, "0");
    }
}
