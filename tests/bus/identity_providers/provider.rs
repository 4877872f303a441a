//! An identity provider's web server: HTTPS on this machine, with a certificate of its own, that counts and misbehaves.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use rcgen::{CertificateParams, KeyPair};
use sealwire_testkit::free_port;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// How the server treats a request.
#[derive(Clone)]
pub(crate) enum Manner {
    /// Answers 200 with the page at that path, or 404 if there is none.
    Serve,
    /// Reads the request and never answers.
    Silent,
    /// Sends these bytes and closes.
    Say(Vec<u8>),
}

pub(crate) struct Provider {
    pub(crate) port: u16,
    /// The certificate, as the file that `tls_ca` names.
    pub(crate) ca: PathBuf,
    tls: TlsAcceptor,
    shared: Arc<Shared>,
    task: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

struct Shared {
    manner: Mutex<Manner>,
    pages: Mutex<Vec<(String, String)>>,
    cache: Mutex<String>,
    asked: Mutex<Vec<String>>,
}

impl Provider {
    pub(crate) async fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        let text = base64::engine::general_purpose::STANDARD.encode(certificate.der());
        std::fs::write(&ca, format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")).unwrap();
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .unwrap();
        let shared = Shared {
            manner: Mutex::new(Manner::Serve),
            pages: Mutex::default(),
            cache: Mutex::default(),
            asked: Mutex::default(),
        };
        let tls = TlsAcceptor::from(Arc::new(config));
        // One that nothing else takes while the provider is away.
        let mut provider = Self { port: free_port(), ca, tls, shared: Arc::new(shared), task: None, _folder: folder };
        provider.listen().await;
        provider
    }

    /// Listens, on the same port as before.
    pub(crate) async fn listen(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        self.port = listener.local_addr().unwrap().port();
        let (tls, shared) = (self.tls.clone(), Arc::clone(&self.shared));
        self.task = Some(tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (tls, shared) = (tls.clone(), Arc::clone(&shared));
                tokio::spawn(async move { shared.talk(tls, socket).await });
            }
        }));
    }

    /// Goes away: connections are refused.
    pub(crate) async fn die(&mut self) {
        let task = self.task.take().unwrap();
        task.abort();
        drop(task.await);
    }

    /// The certificate as PEM.
    pub(crate) fn anchors(&self) -> String {
        std::fs::read_to_string(&self.ca).unwrap()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }

    pub(crate) fn page(&self, path: &str, text: impl ToString) {
        let mut pages = self.shared.pages.lock().unwrap();
        pages.retain(|(known, _)| known != path);
        pages.push((path.to_owned(), text.to_string()));
    }

    /// `Cache-Control` of every page.
    pub(crate) fn cache(&self, value: &str) {
        value.clone_into(&mut self.shared.cache.lock().unwrap());
    }

    pub(crate) fn manner(&self, manner: Manner) {
        *self.shared.manner.lock().unwrap() = manner;
    }

    /// How often a path was requested.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.shared.asked.lock().unwrap().iter().filter(|asked| *asked == path).count()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Shared {
    /// Errors on the way are the client's doing: it hangs up where the test wants it to.
    async fn talk(&self, tls: TlsAcceptor, socket: TcpStream) {
        let Ok(mut stream) = tls.accept(socket).await else { return };
        let mut request = Vec::new();
        let mut piece = [0; 1024];
        while !request.ends_with(b"\r\n\r\n") {
            match stream.read(&mut piece).await {
                Ok(count @ 1..) => request.extend_from_slice(&piece[..count]),
                _ => return,
            }
        }
        let request = String::from_utf8(request).unwrap();
        let path = request.strip_prefix("GET ").unwrap().split(' ').next().unwrap().to_owned();
        assert!(!request.to_lowercase().contains("authorization:") && !request.to_lowercase().contains("cookie:"));
        self.asked.lock().unwrap().push(path.clone());
        let manner = self.manner.lock().unwrap().clone();
        let answer = match manner {
            Manner::Serve => self.answer(&path).into_bytes(),
            Manner::Say(bytes) => bytes,
            Manner::Silent => {
                tokio::time::sleep(Duration::from_secs(60)).await;
                return;
            }
        };
        if stream.write_all(&answer).await.is_ok() {
            drop(stream.shutdown().await);
        }
    }

    fn answer(&self, path: &str) -> String {
        let page = self.pages.lock().unwrap().iter().find(|(known, _)| known == path).map(|(_, text)| text.clone());
        let cache = self.cache.lock().unwrap().clone();
        match page {
            Some(text) => format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: {cache}\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            ),
            None => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
        }
    }
}
