//! Logging in: users, tokens, nkeys, TLS, and the reasons for refusals.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sealwire::{BusConfig, BusError};
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
struct Certificates {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), pem("CERTIFICATE", issuer.der())).unwrap();
        Self { folder, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Certificate and key for these names.
    fn issue(&self, file: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        let paths = (self.path(&format!("{file}.pem")), self.path(&format!("{file}.key")));
        std::fs::write(&paths.0, pem("CERTIFICATE", certificate.der())).unwrap();
        sealwire::auth::write_secret(&paths.1, &pem("PRIVATE KEY", &key.serialize_der()), true).unwrap();
        paths
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let base64 = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = base64.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn tls((certificate, key): &(PathBuf, PathBuf), ca: Option<&Path>) -> String {
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
    sealwire::auth::write_secret(&ours.path("bad.key"), "hunter2", true).unwrap();
    let bad = BusConfig { tls_cert: Some(certificate), tls_key: Some(ours.path("bad.key")), ..bare };
    let error = refused(&bad).await.to_string();
    assert!(error.contains("bad.key") && !error.contains("hunter2"), "{error}");
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
