//! The proof of what a service says under its own key, and not as the answer to a call.
//! Never reads a claim before the signature over it has been verified.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::algorithm::ProofAlgorithm;
use super::headers::HeaderBlock;
use super::key::{ServiceKey, ServicePublicKey};
use super::proof::{ProofHeader, SCHEME, object};
use super::seal::AUTHENTICATION_INFO;
use super::sign::{Unverifiable, proof_of};
use crate::jose::{b64, unb64};

/// The header block with a proof of these claims. `typ` tells what they are of, so that none serves as another.
pub(super) fn sign(typ: &'static str, claims: &impl Serialize, key: &ServiceKey) -> HeaderBlock {
    let header = ProofHeader { algorithm: ProofAlgorithm::EdDsa, kid: key.kid().to_owned(), typ };
    // Claims are strings and numbers, so serializing them cannot fail.
    let input = format!("{}.{}", header.encode(), b64(serde_json::to_vec(claims).unwrap_or_default()));
    let value = format!("{SCHEME} {input}.{}", b64(key.sign(input.as_bytes())));
    HeaderBlock::of(&[(AUTHENTICATION_INFO, &value)])
}

/// The claims of such a proof, if one of these keys signed it.
pub(super) fn verify<C: DeserializeOwned>(
    typ: &'static str,
    headers: &HeaderBlock,
    keys: &[ServicePublicKey],
) -> Result<C, Unverifiable> {
    let (input, signature) = proof_of(headers)?.rsplit_once('.').ok_or(Unverifiable::Malformed)?;
    let (header, claims) = input.split_once('.').ok_or(Unverifiable::Malformed)?;
    let header = ProofHeader::parse_typed(header, typ).map_err(|_| Unverifiable::Malformed)?;
    let signature = unb64(signature).ok_or(Unverifiable::Malformed)?;
    let key = keys.iter().find(|key| key.kid() == header.kid && header.algorithm == ProofAlgorithm::EdDsa);
    if !key.ok_or(Unverifiable::Key)?.key.verify(input.as_bytes(), &signature) {
        return Err(Unverifiable::Signature);
    }
    unb64(claims).and_then(|bytes| object(&bytes)).ok_or(Unverifiable::Malformed)
}
