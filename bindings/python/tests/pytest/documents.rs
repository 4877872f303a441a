//! The reference of the Python package against its docstrings; `SEALWIRE_WRITE_DOCS=1` writes it.
//! Never says more than the code.

use sealwire_testkit::root;

use crate::package;

#[test]
fn the_reference_is_what_the_docstrings_say() {
    let page = root().join("docs/python-reference.md");
    let Some(mut command) = package::command(&["reference.py"]) else { return };
    command.arg(page);
    if std::env::var_os("SEALWIRE_WRITE_DOCS").is_some() {
        command.arg("--write");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
