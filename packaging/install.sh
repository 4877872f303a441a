#!/bin/sh
# Installs the command `sealwire`, its completions and its manual pages for the user who runs this. Needs no root, and touches nothing but
# the folders below; what is not exactly what the release's SHA256SUMS says is refused, and then nothing is changed.
#
#     curl --proto '=https' -fsSL @REPOSITORY@/releases/latest/download/install.sh | sh
#
#   SEALWIRE_BIN        the folder for the program: ~/.local/bin unless set
#   SEALWIRE_SHARE      the folder for the rest: ~/.local/share unless set
#   SEALWIRE_RELEASE    where the files of the release are, such as a mirror of them
set -eu

main() {
    version=@VERSION@
    release=${SEALWIRE_RELEASE:-@REPOSITORY@/releases/download/v$version}
    bin=${SEALWIRE_BIN:-${HOME:?}/.local/bin}
    share=${SEALWIRE_SHARE:-${HOME:?}/.local/share}
    case $release in
    https://* | http://127.0.0.1:* | http://localhost:*) ;;
    *) fail "SEALWIRE_RELEASE is $release: nothing is fetched in clear text from another machine" ;;
    esac
    for program in tar gzip sed grep mktemp; do
        command -v "$program" >/dev/null || fail "this needs the program $program"
    done

    target=$(target)
    name=sealwire-$version-$target
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 1' HUP INT TERM
    fetch "$release/SHA256SUMS" "$scratch/SHA256SUMS"
    fetch "$release/$name.tar.gz" "$scratch/$name.tar.gz"

    # Exactly one line for this file, with exactly a SHA-256 in it.
    wanted=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]$(echo "$name" | sed 's/\./\\./g')\.tar\.gz\$/\1/p" "$scratch/SHA256SUMS")
    [ "${#wanted}" = 64 ] || fail "SHA256SUMS of the release does not name $name.tar.gz, or not once"
    found=$(digest "$scratch/$name.tar.gz")
    [ "$found" = "$wanted" ] ||
        fail "$name.tar.gz is not the file of the release: its SHA-256 is $found, and SHA256SUMS says $wanted. Nothing was installed"

    # Only plain files and folders below one folder, by names without anything odd in them.
    tar -tzf "$scratch/$name.tar.gz" >"$scratch/names" || fail "$name.tar.gz cannot be read"
    odd=$(grep -vE "^$(echo "$name" | sed 's/\./\\./g')/([A-Za-z0-9_-][A-Za-z0-9._-]*/?)*\$" "$scratch/names" || true)
    [ -z "$odd" ] || fail "$name.tar.gz has files that do not belong there. Nothing was installed"
    links=$(tar -tvzf "$scratch/$name.tar.gz" | grep -v '^[-d]' || true)
    [ -z "$links" ] || fail "$name.tar.gz has links or devices. Nothing was installed"
    mkdir "$scratch/files"
    tar -xzf "$scratch/$name.tar.gz" -C "$scratch/files" || fail "$name.tar.gz cannot be unpacked"
    from=$scratch/files/$name
    said=$("$from/sealwire" --version) || fail "the program does not run here"
    [ "$said" = "sealwire $version" ] || fail "the program says that it is $said"

    mkdir -p "$bin"
    put "$from/sealwire" "$bin" sealwire 755
    put "$from/completions/sealwire.bash" "$share/bash-completion/completions" sealwire 644
    put "$from/completions/_sealwire" "$share/zsh/site-functions" _sealwire 644
    put "$from/completions/sealwire.fish" "$share/fish/vendor_completions.d" sealwire.fish 644
    for page in "$from"/man/*.1; do
        put "$page" "$share/man/man1" "$(basename "$page")" 644
    done
    echo "sealwire $version is in $bin; completions and manual pages are in $share"
    case :$PATH: in
    *:"$bin":*) ;;
    *) echo "$bin is not in PATH: add it, for example by  export PATH=\"$bin:\$PATH\"  in your shell's profile" ;;
    esac
}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

# The release's word for this machine.
target() {
    case $(uname -m) in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "there is no release for $(uname -m): cargo install --locked sealwire-cli" ;;
    esac
    case $(uname -s) in
    Darwin) echo "$machine-apple-darwin" ;;
    # Without the C library of GNU, the static program.
    Linux) if getconf GNU_LIBC_VERSION >/dev/null 2>&1; then echo "$machine-unknown-linux-gnu"; else echo "$machine-unknown-linux-musl"; fi ;;
    *) fail "there is no release for $(uname -s): cargo install --locked sealwire-cli" ;;
    esac
}

fetch() {
    if command -v curl >/dev/null; then
        curl --proto '=https,http' --proto-redir '=https' --retry 3 --fail --silent --show-error --location --output "$2" "$1" || fail "cannot fetch $1"
    elif command -v wget >/dev/null; then
        wget --quiet --output-document "$2" "$1" || fail "cannot fetch $1"
    else
        fail "this needs curl or wget"
    fi
}

digest() {
    if command -v sha256sum >/dev/null; then
        sha256sum "$1" | sed 's/ .*//'
    elif command -v shasum >/dev/null; then
        shasum -a 256 "$1" | sed 's/ .*//'
    else
        fail "this needs sha256sum or shasum: what cannot be checked is not installed"
    fi
}

# Puts a file in a folder, in one step: a program that runs meanwhile goes on.
put() {
    mkdir -p "$2"
    cp "$1" "$2/.$3.new"
    chmod "$4" "$2/.$3.new"
    mv -f "$2/.$3.new" "$2/$3"
}

# At the end, so that half a script does nothing.
main
