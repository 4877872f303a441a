//! The files that say whose tokens are accepted and whose were revoked, reread when they change.
//! Never puts a file in force that cannot be read as a whole.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use sealwire::configure::FileTrust;
use sealwire::configure::TokensConfig;
use sealwire::errors::DenylistError;
use sealwire::internal::auth::{Denylist, TokenVerifier};
use sealwire::internal::files::Watch;

/// Files that are reread when they change.
pub(super) struct TokenFiles {
    pub(super) tokens: TokensConfig,
    denylist: Option<PathBuf>,
    /// Made before the files were read.
    watched: Mutex<Vec<(TokenFile, Watch)>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum TokenFile {
    Denylist,
    Keys,
}

impl TokenFiles {
    pub(super) fn new(tokens: TokensConfig, denylist: Option<PathBuf>) -> Self {
        let keys: Vec<_> = tokens.issuer.iter().filter_map(|issuer| issuer.jwks.clone()).collect();
        let denied = denylist.iter().map(|path| (TokenFile::Denylist, Watch::new(vec![path.clone()])));
        let keys = (!keys.is_empty()).then(|| (TokenFile::Keys, Watch::new(keys)));
        let watched = Mutex::new(denied.chain(keys).collect());
        Self { tokens, denylist, watched }
    }

    pub(super) fn denylist(&self) -> Result<Denylist, DenylistError> {
        self.denylist.as_ref().map_or_else(|| Ok(Denylist::default()), Denylist::from_file)
    }

    /// The watches, once.
    pub(super) fn take_watched(&self) -> Vec<(TokenFile, Watch)> {
        std::mem::take(&mut *self.watched.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts the present state of a file in force; says what it is.
    pub(super) fn reread(&self, file: TokenFile, verifier: &TokenVerifier) -> Result<String, String> {
        match file {
            TokenFile::Denylist => {
                verifier.replace_denylist(self.denylist().map_err(|error| error.to_string())?);
                Ok("in force".to_owned())
            }
            TokenFile::Keys => {
                let keys = self.tokens.keys(&FileTrust::default()).map_err(|error| error.to_string())?;
                let count = keys.len();
                verifier.replace_keys(keys);
                Ok(format!("{count} keys"))
            }
        }
    }
}
