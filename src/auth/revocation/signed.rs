//! A list as it is stored and sent: its text, and operators' signatures of that very text.
//! Never takes a list that too few operators have signed.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::config::OperatorConfig;
use super::list::{ListError, RevocationList};
use crate::fault;
use crate::files::{Content, FileTrust, SecretFileError, read_trusted, write_secret};
use crate::jose::{b64, sha256_b64, unb64};
use crate::name::Name;
use crate::settings::Setting;
use crate::wire::{Ed25519Public, KeyError, random_bytes};

/// The longest text of a signed list, in bytes. A full list of the longest entries does not fit; one of usual entries does.
pub const MAX_LIST_BYTES: usize = 64 * 1024;

/// What every signature begins with, so that nothing else that an operator signs is a list.
const SIGNED: &str = "sealwire revocations v1\n";

/// Too few known operators have signed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("signed by {found} of the operators that are known here, and {wanted} are needed")]
pub struct TooFewSignatures {
    /// How many signatures hold.
    pub found: usize,
    /// How many are needed.
    pub wanted: usize,
}

/// Why a list has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignedListError {
    /// Not a signed list.
    #[error("not a signed list of revocations ({0})")]
    Form(String),
    /// Its text is too long.
    #[error(
        "the signed list has {0} bytes, and {MAX_LIST_BYTES} is the most: use shorter reasons, or restore what key rings, deny lists or policies forbid by now"
    )]
    TooLong(usize),
    /// Too few known operators have signed it.
    #[error(transparent)]
    Signatures(#[from] TooFewSignatures),
    /// It is of another environment.
    #[error("a list of the environment {list}, and this is {here}")]
    Environment {
        /// The list's.
        list: Name,
        /// Ours.
        here: Name,
    },
    /// What it says cannot be.
    #[error(transparent)]
    List(#[from] ListError),
}

/// The text of a list, and its signatures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedList {
    /// The list as JSON, in base64url.
    list: String,
    signatures: Signatures,
}

/// What operators have signed a text with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Signatures(Vec<Signature>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    kid: String,
    sig: String,
}

impl SignedList {
    /// The list, signed by nobody yet.
    #[must_use]
    pub fn new(list: &RevocationList) -> Self {
        Self { list: b64(serde_json::to_vec(list).unwrap_or_default()), signatures: Signatures::default() }
    }

    /// The same, signed by this operator, too.
    #[must_use]
    pub fn signed(mut self, key: &OperatorKey) -> Self {
        let input = self.input();
        self.signatures.add(&input, key);
        self
    }

    /// Reads what [`SignedList::to_text`] wrote. No signature is checked.
    ///
    /// # Errors
    /// [`SignedListError::TooLong`], [`SignedListError::Form`].
    pub fn parse(text: &[u8]) -> Result<Self, SignedListError> {
        if text.len() > MAX_LIST_BYTES {
            return Err(SignedListError::TooLong(text.len()));
        }
        serde_json::from_slice(text).map_err(|error| SignedListError::Form(error.to_string()))
    }

    /// As it is stored.
    ///
    /// # Errors
    /// [`SignedListError::TooLong`].
    pub fn to_text(&self) -> Result<String, SignedListError> {
        let text = serde_json::to_string(self).map_err(|error| SignedListError::Form(error.to_string()))?;
        if text.len() > MAX_LIST_BYTES { Err(SignedListError::TooLong(text.len())) } else { Ok(text) }
    }

    /// The SHA-256 of the list's text, whoever signed it.
    #[must_use]
    pub fn digest(&self) -> String {
        sha256_b64(self.list.as_bytes())
    }

    /// Which of these operators have signed it.
    #[must_use]
    pub fn signers(&self, operators: &Operators) -> Vec<String> {
        operators.signers(&self.input(), &self.signatures)
    }

    /// What it says, whoever says so: for showing it to people.
    ///
    /// # Errors
    /// [`SignedListError::Form`], [`SignedListError::List`].
    pub fn unverified(&self) -> Result<RevocationList, SignedListError> {
        let form = |error: String| SignedListError::Form(error);
        let text = unb64(&self.list).ok_or_else(|| form("`list` is not base64url".to_owned()))?;
        let list: RevocationList = serde_json::from_slice(&text).map_err(|error| form(error.to_string()))?;
        list.check()?;
        Ok(list)
    }

    fn input(&self) -> String {
        format!("{SIGNED}{}", self.list)
    }
}

impl Signatures {
    /// Signs this input, too, in the place of an earlier signature of the same operator.
    pub fn add(&mut self, input: &str, key: &OperatorKey) {
        self.0.retain(|signature| signature.kid != key.kid);
        self.0.push(Signature { kid: key.kid.clone(), sig: b64(key.pair.sign(input.as_bytes()).as_ref()) });
    }
}

/// The operators whose signatures count, and how many are needed.
#[derive(Debug, Clone)]
pub struct Operators {
    keys: Vec<(String, Ed25519Public)>,
    wanted: usize,
}

/// Why there are no operators to believe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorsError {
    /// A key is wrong.
    #[error("the operator key `{kid}`: {error}")]
    Key {
        /// Its id.
        kid: String,
        /// What is wrong.
        error: KeyError,
    },
    /// Two keys with one id, or one key twice.
    #[error("the operator key `{0}` is there twice, as an id or as a key: each operator has a key of their own")]
    Twice(String),
    /// More signatures are asked for than there are operators.
    #[error("{wanted} signatures are needed and there are {keys} operator keys")]
    Few {
        /// How many are needed.
        wanted: usize,
        /// How many there are.
        keys: usize,
    },
}

impl Operators {
    /// These keys, of which `wanted` must sign.
    ///
    /// # Errors
    /// [`OperatorsError`].
    pub fn new(keys: &[OperatorConfig], wanted: usize) -> Result<Self, OperatorsError> {
        let (mut known, mut seen) = (Vec::new(), BTreeSet::new());
        for OperatorConfig { kid, x } in keys {
            let wrong = |error| OperatorsError::Key { kid: kid.clone(), error };
            if !crate::wire::is_kid(kid) {
                return Err(wrong(KeyError::Kid));
            }
            let key = Ed25519Public::from_text(x).map_err(wrong)?;
            if !seen.insert(kid.clone()) || !seen.insert(format!("\n{x}")) {
                return Err(OperatorsError::Twice(kid.clone()));
            }
            known.push((kid.clone(), key));
        }
        if wanted == 0 || wanted > known.len() {
            return Err(OperatorsError::Few { wanted, keys: known.len() });
        }
        Ok(Self { keys: known, wanted })
    }

    /// What enough of them have signed for this environment: the list of this text.
    ///
    /// # Errors
    /// [`SignedListError`].
    pub fn verify(&self, text: &[u8], environment: &Name) -> Result<(RevocationList, SignedList), SignedListError> {
        let signed = SignedList::parse(text)?;
        let list = self.check(&signed, environment)?;
        Ok((list, signed))
    }

    /// As [`Operators::verify`], of a list that is not stored yet.
    ///
    /// # Errors
    /// [`SignedListError`].
    pub fn check(&self, signed: &SignedList, environment: &Name) -> Result<RevocationList, SignedListError> {
        self.have_signed(&signed.input(), &signed.signatures)?;
        let list = signed.unverified()?;
        if list.environment == *environment {
            Ok(list)
        } else {
            Err(SignedListError::Environment { list: list.environment, here: environment.clone() })
        }
    }

    /// Whether enough of them have signed this input, which begins with what kind of thing it is.
    ///
    /// # Errors
    /// [`TooFewSignatures`].
    pub fn have_signed(&self, input: &str, signatures: &Signatures) -> Result<(), TooFewSignatures> {
        let (found, wanted) = (self.signers(input, signatures).len(), self.wanted);
        if found < wanted { Err(TooFewSignatures { found, wanted }) } else { Ok(()) }
    }

    /// Which of them have signed this input. Anybody can add a name to what is stored, so only signatures that hold make a signer.
    #[must_use]
    pub fn signers(&self, input: &str, signatures: &Signatures) -> Vec<String> {
        // Each operator counts once, however often a signature is repeated.
        let holds = |(kid, key): &&(String, Ed25519Public)| {
            let of_operator = signatures.0.iter().find(|signature| signature.kid == *kid);
            of_operator
                .and_then(|signature| unb64(&signature.sig))
                .is_some_and(|sig| key.verify(input.as_bytes(), &sig))
        };
        self.keys.iter().filter(holds).map(|(kid, _)| kid.clone()).collect()
    }

    /// Whether this operator's key is one of them.
    #[must_use]
    pub fn know(&self, key: &OperatorKey) -> bool {
        self.keys.iter().any(|(kid, public)| *kid == key.kid && public.to_text() == key.x())
    }
}

/// The key with which an operator signs lists.
pub struct OperatorKey {
    kid: String,
    seed: Zeroizing<[u8; 32]>,
    pair: Ed25519KeyPair,
}

/// Why an operator's key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorKeyError {
    /// The file cannot be read or written, or others can read it.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// The key cannot be made.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Not an operator's key.
    #[error("`{path}` is not an operator's key ({reason}): make one with `sealwire keys new-operator`")]
    Format {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Serialize, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
struct OperatorKeyFile {
    kid: String,
    /// Always `revocation`, so that no other key of ours is taken for one.
    r#use: String,
    seed: Zeroizing<String>,
}

impl OperatorKey {
    /// A new key.
    ///
    /// # Errors
    /// [`KeyError::Kid`], [`KeyError::Random`].
    pub fn generate(kid: &str) -> Result<Self, KeyError> {
        Self::of_seed(kid, Zeroizing::new(random_bytes()?))
    }

    fn of_seed(kid: &str, seed: Zeroizing<[u8; 32]>) -> Result<Self, KeyError> {
        if !crate::wire::is_kid(kid) {
            return Err(KeyError::Kid);
        }
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_slice()).map_err(|_| KeyError::Ed25519)?;
        Ok(Self { kid: kid.to_owned(), seed, pair })
    }

    /// Reads what [`OperatorKey::save`] wrote.
    ///
    /// # Errors
    /// [`OperatorKeyError`].
    pub fn load(path: &Path) -> Result<Self, OperatorKeyError> {
        let text = read_trusted(path, Content::Secret, &FileTrust::default())?;
        let wrong = |reason: String| OperatorKeyError::Format { path: path.display().to_string(), reason };
        let file: OperatorKeyFile = fault::json(&text).map_err(|fault| wrong(fault.to_string()))?;
        if file.r#use != USE {
            return Err(wrong(format!("`use` is not `{USE}`")));
        }
        let seed = Zeroizing::new(unb64(&file.seed).ok_or_else(|| wrong(KeyError::Encoding.to_string()))?);
        let seed: [u8; 32] = seed.as_slice().try_into().map_err(|_| wrong(KeyError::Ed25519.to_string()))?;
        Self::of_seed(&file.kid, Zeroizing::new(seed)).map_err(|error| wrong(error.to_string()))
    }

    /// Writes it with mode 0600; an existing file is an error.
    ///
    /// # Errors
    /// [`OperatorKeyError::File`].
    pub fn save(&self, path: &Path) -> Result<(), OperatorKeyError> {
        let file = OperatorKeyFile {
            kid: self.kid.clone(),
            r#use: USE.to_owned(),
            seed: Zeroizing::new(b64(self.seed.as_slice())),
        };
        let text = Zeroizing::new(serde_json::to_string_pretty(&file).unwrap_or_default() + "\n");
        Ok(write_secret(path, &text, false)?)
    }

    /// Its id.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Its public half, in base64url.
    #[must_use]
    pub fn x(&self) -> String {
        b64(self.pair.public_key().as_ref())
    }
}

const USE: &str = "revocation";

impl fmt::Debug for OperatorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperatorKey({}, ..)", self.kid)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::auth::revocation::list::{Kind, Revocation};

    fn operators(keys: &[&OperatorKey], wanted: usize) -> Result<Operators, OperatorsError> {
        let keys: Vec<_> = keys.iter().map(|key| OperatorConfig { kid: key.kid().to_owned(), x: key.x() }).collect();
        Operators::new(&keys, wanted)
    }

    fn prod() -> Name {
        Name::new("prod").unwrap()
    }

    fn list() -> RevocationList {
        let everything =
            Revocation { kind: Kind::Everything, name: "*".into(), until: None, at_ms: 1, reason: String::new() };
        RevocationList::first(prod(), 0).revoke(everything).unwrap()
    }

    #[test]
    fn only_the_configured_number_of_different_operators_makes_a_list() {
        let [one, two, mallory] = ["op-1", "op-2", "op-1"].map(|kid| OperatorKey::generate(kid).unwrap());
        let both = operators(&[&one, &two], 2).unwrap();
        let few = |found| Err(SignedListError::Signatures(TooFewSignatures { found, wanted: 2 }));
        let signed = SignedList::new(&list()).signed(&one);
        assert_eq!(both.check(&SignedList::new(&list()), &prod()), few(0));
        assert_eq!(both.check(&signed, &prod()), few(1));
        assert_eq!(both.check(&signed.clone().signed(&mallory), &prod()), few(0), "another key under a known id");
        let mut twice = signed.clone();
        twice.signatures.0.push(twice.signatures.0.first().unwrap().clone());
        assert_eq!(both.check(&twice, &prod()), few(1), "one signature, twice");
        let complete = signed.signed(&two);
        assert_eq!(both.check(&complete, &prod()), Ok(list()));
        let mut changed = complete.clone();
        changed.list = SignedList::new(&list().next(5)).list;
        assert_eq!(both.check(&changed, &prod()), few(0), "signatures of another list");
        let text = complete.to_text().unwrap();
        assert_eq!(SignedList::parse(text.as_bytes()), Ok(complete));
        for wrong in ["", "{}", "[]", "{\"list\":\"\",\"signatures\":[],\"more\":1}"] {
            assert!(matches!(SignedList::parse(wrong.as_bytes()), Err(SignedListError::Form(_))), "{wrong}");
        }
        let long = vec![b' '; MAX_LIST_BYTES + 1];
        assert_eq!(SignedList::parse(&long), Err(SignedListError::TooLong(MAX_LIST_BYTES + 1)));
    }

    #[test]
    fn operators_that_are_fewer_than_they_look_are_refused() {
        let [one, two] = ["op-1", "op-2"].map(|kid| OperatorKey::generate(kid).unwrap());
        assert_eq!(operators(&[&one], 2).unwrap_err(), OperatorsError::Few { wanted: 2, keys: 1 });
        assert_eq!(operators(&[&one, &two], 0).unwrap_err(), OperatorsError::Few { wanted: 0, keys: 2 });
        assert_eq!(operators(&[&one, &one], 1).unwrap_err(), OperatorsError::Twice("op-1".into()));
        let same = |kid: &str| OperatorConfig { kid: kid.to_owned(), x: one.x() };
        assert_eq!(Operators::new(&[same("a"), same("b")], 2).unwrap_err(), OperatorsError::Twice("b".into()));
    }

    #[test]
    fn a_key_survives_its_file_and_is_no_other_kind_of_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("op.json");
        let key = OperatorKey::generate("op-1").unwrap();
        key.save(&path).unwrap();
        let loaded = OperatorKey::load(&path).unwrap();
        assert_eq!((loaded.kid(), loaded.x()), (key.kid(), key.x()));
        assert!(operators(&[&key], 1).unwrap().know(&loaded));
        let text = std::fs::read_to_string(&path).unwrap().replace("\"revocation\"", "\"other\"");
        write_secret(&path, &text, true).unwrap();
        assert!(OperatorKey::load(&path).unwrap_err().to_string().contains("new-operator"));
    }
}
