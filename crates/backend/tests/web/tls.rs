//! Whose certificate is accepted.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use sealwire_backend::web::{Request, Web, WebError};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::server::{answer, config, request, web, within};

fn pem(certificate: &rcgen::Certificate) -> String {
    let text = STANDARD.encode(certificate.der());
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

#[tokio::test]
async fn a_certificate_must_come_from_an_anchor_and_be_for_the_host() {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let server = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            if let Ok(mut stream) = acceptor.accept(socket).await
                && request(&mut stream).await.is_some()
            {
                stream.write_all(&answer("200 OK", "there")).await.unwrap();
            }
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, pem(&cert)).unwrap();
    let trusted = web(&format!("https://127.0.0.1:{port}/"), json!({ "tls_ca": ca }));
    let reply = within(trusted.send(&Request::post("{}"), None)).await.unwrap();
    assert_eq!(within(reply.text()).await.unwrap(), "there");

    let others = pem(&generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap().cert);
    let foreign = folder.path().join("foreign.pem");
    std::fs::write(&foreign, others).unwrap();
    let elsewhere = format!("https://localhost:{port}/");
    for (url, ca) in [(format!("https://127.0.0.1:{port}/"), &foreign), (elsewhere, &ca)] {
        let error = within(web(&url, json!({ "tls_ca": ca })).send(&Request::post("{}"), None)).await.unwrap_err();
        assert!(matches!(&error, WebError::Unreached { .. }), "{error}");
    }

    // Trust anchors are worth no more than whoever may write them.
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&ca, std::fs::Permissions::from_mode(0o666)).unwrap();
    let open = Web::new(&config("https://a.example/", json!({ "tls_ca": ca }))).unwrap_err();
    assert!(open.contains("chmod go-w"), "{open}");
    std::fs::write(&foreign, "no certificate").unwrap();
    let none = Web::new(&config("https://a.example/", json!({ "tls_ca": foreign }))).unwrap_err();
    assert!(none.contains("no certificate in it"), "{none}");
    let plain = Web::new(&config("http://127.0.0.1:1/", json!({ "tls_ca": foreign }))).unwrap_err();
    assert!(plain.contains("https://"), "{plain}");
}
