//! X.509 certificates of the brokers and of the gateway, each kind signed by its own certificate authority.
//! Never keeps an authority's key: nobody can add a certificate that the brokers or clients would trust.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure, OrFail as _};

/// The certificates of one authority.
pub(super) struct Certificates {
    /// The authority's certificate, which clients trust, as PEM.
    pub(super) authority: String,
    /// One for each broker or gateway, in their order.
    pub(super) each: Vec<Certificate>,
}

/// A certificate and its key.
pub(super) struct Certificate {
    pub(super) certificate: String,
    pub(super) key: Zeroizing<String>,
}

/// How long certificates are valid, in days: the public web's limit of 2024. They are renewed well before.
pub(super) const DAYS: i64 = 398;

const SERVER: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ServerAuth;
const CLIENT: ExtendedKeyUsagePurpose = ExtendedKeyUsagePurpose::ClientAuth;

impl Certificates {
    /// The brokers' certificates, one for each host name, for both sides of a connection: a broker is a server to its clients,
    /// and a server or a client to the other brokers.
    pub(super) fn of_brokers(hosts: &[&str], now: OffsetDateTime) -> Result<Self, Failure> {
        let each: Vec<&[&str]> = hosts.chunks(1).collect();
        Self::generate("sealwire cluster authority", &each, &[SERVER, CLIENT], now)
    }

    /// The gateway's certificate, for these host names. From another authority, since brokers recognize each other by theirs.
    pub(super) fn of_gateway(hosts: &[&str], now: OffsetDateTime) -> Result<Self, Failure> {
        Self::generate("sealwire gateway authority", &[hosts], &[SERVER], now)
    }

    fn generate(
        name: &str,
        each: &[&[&str]],
        usages: &[ExtendedKeyUsagePurpose],
        now: OffsetDateTime,
    ) -> Result<Self, Failure> {
        let authority_key = KeyPair::generate().or_fail(Exit::Bug)?;
        let mut params = params(name, &[], now)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = params.self_signed(&authority_key).or_fail(Exit::Bug)?;
        let authority = pem("CERTIFICATE", authority.der()).to_string();
        let issuer = Issuer::new(params, authority_key);
        let certificate = |hosts: &&[&str]| {
            let key = KeyPair::generate().or_fail(Exit::Bug)?;
            let mut params = self::params(hosts.first().copied().unwrap_or_default(), hosts, now)?;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = usages.to_vec();
            params.use_authority_key_identifier_extension = true;
            let certificate = params.signed_by(&key, &issuer).or_fail(Exit::Bug)?;
            let certificate = pem("CERTIFICATE", certificate.der()).to_string();
            Ok(Certificate { certificate, key: pem("PRIVATE KEY", &Zeroizing::new(key.serialize_der())) })
        };
        let each = each.iter().map(certificate).collect::<Result<Vec<_>, Failure>>()?;
        Ok(Self { authority, each })
    }
}

fn params(name: &str, hosts: &[&str], now: OffsetDateTime) -> Result<CertificateParams, Failure> {
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(hosts).or_fail(Exit::Bug)?;
    params.distinguished_name.push(DnType::CommonName, name);
    // Containers on one machine share a clock, but that of a client elsewhere may be behind.
    params.not_before = now - Duration::hours(1);
    params.not_after = now + Duration::days(DAYS);
    Ok(params)
}

/// RFC 7468: base64 in lines of 64 characters between two marks.
fn pem(label: &str, der: &[u8]) -> Zeroizing<String> {
    let base64 = Zeroizing::new(STANDARD.encode(der));
    let mut text = Zeroizing::new(format!("-----BEGIN {label}-----\n"));
    // Reserve enough space at once: growing would leave copies of a key behind.
    text.reserve(2 * base64.len() + 64);
    for (index, character) in base64.chars().enumerate() {
        if index > 0 && index % 64 == 0 {
            text.push('\n');
        }
        text.push(character);
    }
    text.push_str(&format!("\n-----END {label}-----\n"));
    text
}
