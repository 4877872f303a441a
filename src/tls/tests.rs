#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair};

use super::*;

fn pem(label: &str, der: &[u8]) -> String {
    let base64 = STANDARD.encode(der);
    let lines: Vec<&str> = base64.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// A certificate and its key.
fn pair() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["a".to_owned()]).unwrap().self_signed(&key).unwrap();
    (pem("CERTIFICATE", certificate.der()), pem("PRIVATE KEY", &key.serialize_der()))
}

/// What operators have put where a certificate or a key belongs.
#[test]
fn what_is_in_a_file_instead_is_called_by_its_name() {
    let (certificate, key) = pair();
    let (other_certificate, other_key) = pair();
    let with_cr = |text: &str| text.replace('\n', "\r\n");
    // A certificate, its key and a comment in one file, as some tools write them.
    let both = format!("Bag Attributes\n    friendlyName: a\nsubject=CN = a\n{certificate}{key}");
    let chain = format!("{certificate}{other_certificate}");
    for (certificate, key) in [
        (certificate.as_str(), key.as_str()),
        (&both, &both),
        (&chain, &key),
        (&with_cr(&certificate), &with_cr(&key)),
        (&certificate.replace('\n', "\r"), &key),
        (&format!("\n\n{certificate}\n"), &format!("# mine\n{key}")),
    ] {
        assert!(identity(certificate, key).is_ok(), "{certificate}");
    }
    assert_eq!(certificates(&chain).unwrap().len(), 2);
    let cut = |text: &str| text[..text.len() / 2].to_owned();
    let request = pem("CERTIFICATE REQUEST", b"request");
    let public = pem("PUBLIC KEY", b"public");
    let ssh = pem("OPENSSH PRIVATE KEY", b"openssh-key-v1");
    let params = pem("EC PARAMETERS", b"params");
    let nonsense = pem("CERTIFICATE", b"no certificate");
    let not_base64 = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
    for (text, fault) in [
        ("", TlsFault::Pem(PemFault::Empty)),
        (" \n\t\n", TlsFault::Pem(PemFault::Empty)),
        ("hello", TlsFault::Pem(PemFault::NoCertificate)),
        ("{\"keys\":[]}", TlsFault::Pem(PemFault::NoCertificate)),
        (&key, TlsFault::Pem(PemFault::KeyForCertificate)),
        (&pem("RSA PRIVATE KEY", b"key"), TlsFault::Pem(PemFault::KeyForCertificate)),
        (&pem("EC PRIVATE KEY", b"key"), TlsFault::Pem(PemFault::KeyForCertificate)),
        (&pem("ENCRYPTED PRIVATE KEY", b"key"), TlsFault::Pem(PemFault::KeyForCertificate)),
        (&public, TlsFault::Pem(PemFault::PublicKey(Wanted::Certificate))),
        (&request, TlsFault::Pem(PemFault::Request(Wanted::Certificate))),
        (&pem("NEW CERTIFICATE REQUEST", b"r"), TlsFault::Pem(PemFault::Request(Wanted::Certificate))),
        (&ssh, TlsFault::Pem(PemFault::OpenSsh)),
        (&params, TlsFault::Pem(PemFault::Other(Wanted::Certificate))),
        (&cut(&certificate), TlsFault::Pem(PemFault::Damaged)),
        (not_base64, TlsFault::Pem(PemFault::Damaged)),
    ] {
        assert_eq!(certificates(text), Err(fault.clone()), "{text}");
        assert_eq!(identity(text, &key).unwrap_err(), (Half::Certificates, fault.clone()), "{text}");
        assert!(trusting(Some(text)).is_err(), "{text}");
    }
    assert!(matches!(identity(&nonsense, &key), Err((Half::Certificates, TlsFault::Certificate(_)))));
    assert!(matches!(trusting(Some(&nonsense)), Err(TlsFault::Certificate(_))));
    // RFC 1421: how OpenSSL 0.9 to 1.1 encrypt, and `-traditional` of later ones.
    let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
    for (text, fault) in [
        ("", TlsFault::Pem(PemFault::Empty)),
        ("hello", TlsFault::Pem(PemFault::NoKey)),
        (certificate.as_str(), TlsFault::Pem(PemFault::CertificateForKey)),
        (&public, TlsFault::Pem(PemFault::PublicKey(Wanted::Key))),
        (&pem("RSA PUBLIC KEY", b"p"), TlsFault::Pem(PemFault::PublicKey(Wanted::Key))),
        (&request, TlsFault::Pem(PemFault::Request(Wanted::Key))),
        (&ssh, TlsFault::Pem(PemFault::OpenSsh)),
        (&params, TlsFault::Pem(PemFault::Other(Wanted::Key))),
        (&pem("ENCRYPTED PRIVATE KEY", b"encrypted"), TlsFault::Pem(PemFault::Encrypted)),
        (old, TlsFault::Pem(PemFault::Encrypted)),
        (&with_cr(old), TlsFault::Pem(PemFault::Encrypted)),
        (&cut(&key), TlsFault::Pem(PemFault::Damaged)),
        (&pem("PRIVATE KEY", b"no key"), TlsFault::Key),
        (RSA_1024, TlsFault::Key),
        (&other_key, TlsFault::Pair),
    ] {
        let (half, found) = identity(&certificate, text).unwrap_err();
        assert_eq!((half, &found), (Half::Key, &fault), "{text}");
        // Nothing of a key is in any message.
        let said = format!("{found} {found:?}");
        assert!(text.lines().all(|line| line.len() < 16 || line.starts_with('-') || !said.contains(line)), "{said}");
    }
}

#[test]
fn a_certificate_is_valid_between_its_dates() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["a".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let certificate = params.self_signed(&key).unwrap();
    let at = |secs| UnixTime::since_unix_epoch(Duration::from_secs(secs));
    // 2019, 2020, 2022.
    for (secs, fault) in
        [(1_560_000_000, Some("not valid yet")), (1_590_000_000, None), (1_650_000_000, Some("expired"))]
    {
        let found = in_time(certificate.der(), at(secs)).err().map(|error| TlsFault::Date(error).to_string());
        assert_eq!(found.is_some(), fault.is_some(), "{secs}: {found:?}");
        assert!(fault.is_none_or(|fault| found.is_some_and(|found| found.contains(fault))), "{secs}");
    }
}

/// RSA of 1024 bits, which no TLS library takes any more.
const RSA_1024: &str = "\
    -----BEGIN PRIVATE KEY-----\n\
    MIICdwIBADANBgkqhkiG9w0BAQEFAASCAmEwggJdAgEAAoGBALTGi/eREWGdxJr2\n\
    gH72C8gfcIksE/rr2GdGfqLsNJEUv58PNGyfLPrNqMYvtgPuoEKJm0nmtIi7O++w\n\
    oNTzsgajYTA7W0rrIuUMAfRXRa4wZZpDIPJAgR40gI1uUsDswF2Cu7j4xZCgjIsX\n\
    MF1t3+VwIkkgH35c1d1y5IR0tl9NAgMBAAECgYBNiP8NfvYShUWHJYT1b3icLAfr\n\
    fbFQJQnbOdwk6uSc+WY6xZ25nQgAxmbGIj6SLy4je7vUFZSHNK8/XeWNkLxg7c0h\n\
    I+W4j7M4hUWstDnnyFsAhylHJgzd5cYcjegFZ//vmBEFQONXjKjj6lz71E9cgpt7\n\
    ecl+ROiwt0VwOoB87QJBAOBUiYEEH4G6ozMZ4Jv9+DW27/3kxulIIodZcRrzKqfp\n\
    xl+ODTte9oNP7KCqcSNBknEYanjUrrQGbShdOujhCjMCQQDOS+luJjQ5UCOIioIB\n\
    QX/g/gTcPNAnhugSSANAuayw7k9MVpi7yIn+fHc8Lpl3UNu3hKetwj7ByH48IypA\n\
    9HB/AkEAguFPiDI7n5igdsP2Q4ydL9mXk23Sj3BClO0eDDcq/+RolH9wQN9au6n5\n\
    yJMohwVOxyUTmYOcmfPV4+Lg59XD+QJBAIc7agUD1D4x02lBaqGKH1sNCYCZ+NXA\n\
    cMbzH/bBAHxna+Id7jdC6XrCeqMf5Qg7IBz4P7b+24bKeD3Ry3QTCN8CQFsNJpGU\n\
    g+hUx5Sr4F35iTCcNXElfGf+7JQVOnE7PYuljJJgEBlXF9VqR3AXn0M3D1EYMxls\n\
    aXccPDDHGupo2NY=\n\
    -----END PRIVATE KEY-----\n";
