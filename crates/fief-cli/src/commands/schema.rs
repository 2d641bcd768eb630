// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief schema`: the JSON schema of policies, for editors.

use crate::failure::Result;
use crate::output::Output;

pub fn run(output: &mut Output) -> Result<()> {
    let schema = serde_json::to_string_pretty(&fief_policy::schema()).expect("a JSON value always serialises");
    output.line(schema)
}
