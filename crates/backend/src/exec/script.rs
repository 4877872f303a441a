//! Programs that take code as an argument: shells and other interpreters, also when another program starts them.
//! Never lets a caller's text become part of what they run.

use sealwire::policy::{Param, ParamType};

use crate::arguments::Piece;

/// How an interpreter finds its code: after certain options, otherwise in its first argument that is not an option.
struct Interpreter {
    programs: &'static [&'static str],
    /// Letters of options whose value is code, or names it ...
    code: &'static str,
    /// ... of options with any other value ...
    valued: &'static str,
    /// ... and of options whose value is data, whatever it contains.
    data: &'static str,
}

/// Program names have no version suffix here.
const INTERPRETERS: [Interpreter; 9] = [
    // After `-c`, too, the code is the first argument that is not an option.
    Interpreter {
        programs: &["sh", "bash", "dash", "ash", "rbash", "zsh", "ksh", "mksh", "csh", "tcsh"],
        code: "",
        valued: "oO",
        data: "",
    },
    Interpreter { programs: &["fish"], code: "cC", valued: "dDfo", data: "" },
    Interpreter { programs: &["python", "pypy"], code: "cm", valued: "WX", data: "" },
    Interpreter { programs: &["perl"], code: "eE", valued: "I", data: "" },
    Interpreter { programs: &["ruby"], code: "e", valued: "ICEXr", data: "" },
    Interpreter { programs: &["node", "nodejs"], code: "ep", valued: "Cr", data: "" },
    Interpreter { programs: &["php"], code: "rBREf", valued: "dcStz", data: "" },
    Interpreter { programs: &["awk", "gawk", "mawk", "nawk"], code: "fieE", valued: "Fl", data: "v" },
    Interpreter { programs: &["sed"], code: "ef", valued: "l", data: "" },
];

/// The same for long options; without `=`, the value is the next word.
const CODE: [&str; 8] =
    ["--command", "--init-command", "--eval", "--print", "--run", "--source", "--expression", "--file"];
const VALUED: [&str; 5] = ["--rcfile", "--init-file", "--require", "--import", "--field-separator"];

/// Programs that start another program, named by one of their arguments.
const STARTERS: [&str; 20] = [
    "env", "nice", "ionice", "chrt", "nohup", "timeout", "time", "setsid", "stdbuf", "sudo", "doas", "busybox",
    "xargs", "chroot", "unshare", "setpriv", "flock", "docker", "podman", "kubectl",
];

/// Checks that no caller's text becomes part of what an interpreter runs. Numbers and booleans cannot be code.
///
/// # Errors
/// A text would; says how to pass it instead.
pub(super) fn check(words: &[Vec<Piece>], params: &[Param]) -> Result<(), String> {
    let starts = words.first().is_some_and(|word| STARTERS.contains(&program(word)));
    let among = if starts { words } else { words.get(..1).unwrap_or_default() };
    let found = among.iter().enumerate().find_map(|(at, word)| {
        let name = program(word);
        INTERPRETERS.iter().find(|one| one.programs.contains(&name)).map(|one| (at, name, one))
    });
    let Some((at, name, interpreter)) = found else { return Ok(()) };
    let literal = |word: &[Piece]| match word.iter().find_map(|piece| text_of(piece, params)) {
        None => Ok(()),
        Some(param) => Err(format!(
            "parameter `{param}` would be a part of what `{name}` runs: hand it over as an argument, such as \
             [\"sh\", \"-c\", \"echo \\\"$1\\\"\", \"sh\", \"{{{param}}}\"], or let the code read it from standard input"
        )),
    };
    let (mut has_code, mut rest) = (false, words.get(at + 1..).unwrap_or_default().iter());
    while let Some(word) = rest.next() {
        let option = match word.first() {
            Some(Piece::Text(text)) if text.len() > 1 && text.starts_with(['-', '+']) => text,
            // Arguments after the code are for the code to read.
            _ if has_code => return Ok(()),
            Some(Piece::Text(text)) if text == "-" && word.len() == 1 => break,
            _ => return literal(word),
        };
        literal(word)?;
        let (mut code, mut valued, mut data) =
            (CODE.contains(&option.as_str()), VALUED.contains(&option.as_str()), false);
        has_code |= code;
        if option == "--" {
            match rest.next() {
                Some(_) if has_code => return Ok(()),
                Some(word) => return literal(word),
                None => break,
            }
        }
        let letters = if option.starts_with("--") { "" } else { option.get(1..).unwrap_or_default() };
        for (at, letter) in letters.char_indices() {
            let is_last = at + letter.len_utf8() == letters.len();
            if interpreter.code.contains(letter) {
                (code, has_code) = (true, has_code || is_last);
            } else if interpreter.valued.contains(letter) || interpreter.data.contains(letter) {
                (valued, data) = (is_last, is_last && interpreter.data.contains(letter));
                break;
            }
        }
        if (code || valued)
            && let Some(value) = rest.next()
            && !data
        {
            literal(value)?;
        }
    }
    if has_code {
        return Ok(());
    }
    Err(format!("`{name}` would run the caller's parameters, which are its standard input: name a script"))
}

/// The name of the program in a word, without folder and version.
fn program(word: &[Piece]) -> &str {
    let [Piece::Text(text)] = word else { return "" };
    text.rsplit('/').next().unwrap_or_default().trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'))
}

/// The name of the parameter that a piece stands for, if it is a string.
fn text_of<'a>(piece: &Piece, params: &'a [Param]) -> Option<&'a str> {
    let Piece::Param(at) = piece else { return None };
    params.get(*at).filter(|param| *param.kind() == ParamType::String).map(Param::name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::arguments::pieces;

    fn checked(line: &[&str]) -> Result<(), String> {
        let params = [Param::string("p"), Param::integer("n")];
        let words: Vec<_> = line.iter().map(|word| pieces(word, &params).unwrap()).collect();
        check(&words, &params)
    }

    #[test]
    fn no_text_of_a_caller_is_a_part_of_a_script() {
        for line in [
            ["sh", "-c", "echo hello {p}"].as_slice(),
            &["/bin/bash", "-euo", "pipefail", "-c", "{p}"],
            &["bash", "-lc", "-x", "{p}"],
            &["sh", "scripts/{p}.sh"],
            &["sh", "--", "{p}"],
            &["bash", "--rcfile", "x", "-c", "{p}"],
            &["fish", "-c", "true", "-c", "echo {p}"],
            &["fish", "--command=echo {p}"],
            &["env", "A=b", "-u", "C", "sh", "-c", "{p}"],
            &["timeout", "5", "/usr/bin/env", "python3.12", "-c", "print({p})"],
            &["python3", "-I", "-W", "ignore", "-c", "{p}"],
            &["python3", "-cprint({p})"],
            &["python3", "-m", "{p}"],
            &["perl", "-ne", "print", "-e", "{p}"],
            &["ruby", "-rjson", "-e", "{p}"],
            &["node", "-pe", "{p}"],
            &["node", "--eval", "{p}"],
            &["php", "-r", "{p}"],
            &["awk", "-F", ":", "/{p}/"],
            &["gawk", "-v", "x=1", "-e", "{p}"],
            &["sed", "-n", "s/{p}/x/"],
        ] {
            let error = checked(line).unwrap_err();
            assert!(error.contains("`p` would be a part") && error.contains("$1"), "{line:?}: {error}");
        }
        // The code would be what the caller sends.
        for line in [["sh"].as_slice(), &["bash", "-l"], &["env", "ruby"], &["python3", "-"]] {
            assert!(checked(line).unwrap_err().contains("standard input"), "{line:?}");
        }
    }

    #[test]
    fn what_a_script_reads_itself_is_handed_over() {
        for line in [
            ["sh", "-c", "echo \"$1\"", "sh", "{p}"].as_slice(),
            &["bash", "-o", "pipefail", "-c", "echo \"$1\"", "--", "{p}"],
            &["sh", "script.sh", "-c", "{p}"],
            &["env", "A={p}", "python3", "-u", "tool.py", "-e", "{p}"],
            &["python3", "-m", "tool", "{p}"],
            &["python3", "-c", "import sys; print(sys.argv[1])", "{p}"],
            &["perl", "-e", "print $ARGV[0]", "--", "{p}"],
            &["node", "--no-warnings", "tool.js", "--eval={p}"],
            &["awk", "-v", "city={p}", "$1 == city", "cities"],
            &["awk", "-f", "find.awk", "{p}"],
            &["sed", "-n", "{n}p", "{p}"],
            &["grep", "-e", "{p}", "sh"],
            &["date", "--date={p}"],
        ] {
            assert_eq!(checked(line), Ok(()), "{line:?}");
        }
    }
}
