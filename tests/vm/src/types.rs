// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernels whose description of their own types (BTF) is broken. It has the functions for schedulers with other arguments than they take, or
//! lacks them, so libbpf refuses Fief's scheduler, whatever its programs do: nothing can be checked of it there.

use std::process::Command;

/// What libbpf complains of as Fief tries whether its scheduler can be loaded; `None`: not of the kernel's types.
pub fn broken() -> Option<String> {
    let output = Command::new("fief").arg("probe").env("FIEF_LOG", "debug").output().ok()?;
    complaint(&String::from_utf8_lossy(&output.stderr))
}

/// Of functions that may be missing libbpf says nothing.
fn complaint(said: &str) -> Option<String> {
    const FUNCTION: &str = "extern (func ksym)";
    const TYPES: [&str; 2] = ["loading vmlinux BTF", "is not found in kernel BTF"];
    let of_types = |line: &&str| {
        let of_function = ["incompatible with", "not found in kernel"].iter().any(|words| line.contains(words));
        line.contains(FUNCTION) && of_function || TYPES.iter().any(|words| line.contains(words))
    };
    let line = said.lines().find(of_types)?;
    let begin = line.find(FUNCTION).or_else(|| line.find("libbpf:")).unwrap_or_default();
    Some(line[begin..].trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::complaint;

    #[test]
    fn broken_types_are_known_by_what_libbpf_says_of_the_kernels_functions() {
        let incompatible =
            "extern (func ksym) 'scx_bpf_create_dsq': func_proto [130] incompatible with vmlinux [96013]";
        let said = format!(
            "DEBUG fief_bpf::open: libbpf: {incompatible}\nDEBUG fief_bpf::open: libbpf: failed to load object 'sched_bpf'\n"
        );
        assert_eq!(complaint(&said).as_deref(), Some(incompatible));
        let missing = "extern (func ksym) 'scx_bpf_create_dsq': not found in kernel or module BTFs";
        assert_eq!(complaint(missing).as_deref(), Some(missing));
        assert_eq!(
            complaint("libbpf: Error loading vmlinux BTF: -EINVAL").as_deref(),
            Some("libbpf: Error loading vmlinux BTF: -EINVAL")
        );
    }

    /// A program that the verifier refuses is Fief's to mend, and so is a structure of which the kernel knows no such member.
    #[test]
    fn a_refused_program_is_no_broken_type() {
        let refused = "libbpf: prog 'enqueue_waits': BPF program load failed: -EACCES\n-- BEGIN PROG LOAD LOG --\nR1 invalid mem access 'scalar'";
        assert_eq!(complaint(refused), None);
        let member =
            "libbpf: struct_ops sched_ops: member sub_attach not found in kernel, skipping it as it's set to zero";
        assert_eq!(complaint(member), None);
        assert_eq!(complaint(""), None);
    }
}
