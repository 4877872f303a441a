//! Why a TLS connection was not established, in words that say what to do.
//! Never hides what the library says where there is nothing better to say.

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error};

/// What an operator can do about an error while a connection was being established, or right afterwards: with TLS 1.3, a server refuses our
/// certificate only then.
pub fn failure(error: &std::io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(tls) => told(tls),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "the other side closed the connection during the handshake: does it speak TLS there?".to_owned()
        }
        None => error.to_string(),
    }
}

fn told(error: &Error) -> String {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked, CertificateUnknown,
        DecryptError, HandshakeFailure, InsufficientSecurity, ProtocolVersion, UnknownCA, UnsupportedCertificate,
    };
    match error {
        Error::InvalidMessage(_) => {
            "what answers there does not speak TLS: leave TLS out here (`nats://`, no `tls_ca`), or switch it on there"
                .to_owned()
        }
        Error::AlertReceived(CertificateRequired) => {
            "the other side wants a certificate of ours: name one with `tls_cert`, and its key with `tls_key`"
                .to_owned()
        }
        Error::AlertReceived(
            alert @ (BadCertificate
            | UnsupportedCertificate
            | CertificateRevoked
            | CertificateExpired
            | CertificateUnknown
            | UnknownCA
            | AccessDenied
            | DecryptError),
        ) => format!(
            "the other side refuses our certificate, or misses one ({alert:?}): `tls_cert` must be valid now, and signed by an authority \
             that it trusts"
        ),
        Error::AlertReceived(alert @ (HandshakeFailure | ProtocolVersion | InsufficientSecurity)) => {
            format!("the other side takes none of what is offered ({alert:?}): it must speak TLS 1.2 or 1.3")
        }
        Error::PeerIncompatible(why) => {
            format!("the other side takes none of what is offered ({why:?}): it must speak TLS 1.2 or 1.3")
        }
        Error::InvalidCertificate(fault) => certificate(fault),
        error => error.to_string(),
    }
}

fn certificate(fault: &CertificateError) -> String {
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
        NotValidYetContext, UnknownIssuer,
    };
    match fault {
        UnknownIssuer | BadSignature => "the certificate of the other side is signed by no authority that is trusted here: name its authority with \
             `tls_ca`, or check that this is the right server"
            .to_owned(),
        NotValidForName | NotValidForNameContext { .. } => format!(
            "the certificate of the other side is for another host name than the one in the address ({fault}): use a name that is in it"
        ),
        Expired | ExpiredContext { .. } => {
            format!("the certificate of the other side has expired, or the clock of this machine is wrong ({fault})")
        }
        NotValidYet | NotValidYetContext { .. } => {
            format!("the certificate of the other side is not valid yet, or the clock of this machine is wrong ({fault})")
        }
        fault if format!("{fault:?}").contains("CaUsedAsEndEntity") => {
            "the certificate of the other side is that of an authority, used as its own: let the authority sign one for the server".to_owned()
        }
        fault => format!("the certificate of the other side is refused: {fault}"),
    }
}
