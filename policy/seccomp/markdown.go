package seccomp

import (
	"fmt"
	"slices"
	"strings"
)

// Markdown is docs/seccomp.md: which calls, in which group, why, and what each
// profile answers. It is made from the rules, so it cannot say anything else.
func Markdown() string {
	var s strings.Builder
	s.WriteString("# System calls of a Worker\n\n" +
		"Made by `go generate ./policy/seccomp` from the profiles; do not edit.\n\n" +
		"A call that no rule names is answered with ENOSYS, so that programs fall back as on an older kernel.\n" +
		"That goes for every call newer than Linux 5.17. A call of another ABI (i386's `int 0x80`, x32) kills the process.\n" +
		"`seccomp_allow` in a policy adds calls, but none that a profile refuses or limits by name.\n\n## Profiles\n\n")
	for _, p := range Profiles() {
		fmt.Fprintf(&s, "- `%s`: %s\n", p.Name, p.Why)
	}
	s.WriteString("\n## Tools\n\nBy experience; tests/toolchains has git, make, gcc, Go, npm, python, gdb, bubblewrap and Chromium at work under the profile named here, java and cargo where they are installed.\n\n| tool | profile | because |\n|---|---|---|\n" + toolsTable +
		"\n## Groups\n\n| group | profiles | answer | calls | why |\n|---|---|---|---|---|\n")
	for _, g := range allGroups() {
		var in []string
		for _, p := range Profiles() {
			if slices.ContainsFunc(p.Groups, func(q Group) bool { return q.Name == g.Name }) {
				in = append(in, string(p.Name))
			}
		}
		names := strings.Join(in, ", ")
		if len(in) == len(profiles) {
			names = "all"
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %s | %s |\n", g.Name, names, g.answer(), strings.Join(g.calls(), " "), g.Why)
	}
	return s.String()
}

const toolsTable = "" +
	"| git, make, gcc, Go (build, test), node and npm, python and venv, java, cargo | default | strict too, where nothing listens on TCP and nothing runs a program that has no path |\n" +
	"| servers on loopback, databases | default | making AF_INET sockets; System V IPC |\n" +
	"| a sandbox by seccomp or Landlock of an agent's own | default | both only take rights away; under audit no filter of its own can have a listener |\n" +
	"| gdb, strace, sanitizers that trace | debug | tracing; personality's ADDR_NO_RANDOMIZE |\n" +
	"| bubblewrap, Chromium with its sandbox, rootless containers | nested | namespaces, mounting |\n" +
	"| a program that fails and nobody knows why | audit | tells what was refused; then choose |\n"

// allGroups are the groups of all profiles, each once.
func allGroups() []Group {
	var out []Group
	for _, p := range profiles {
		for _, g := range p.Groups {
			if !slices.ContainsFunc(out, func(q Group) bool { return q.Name == g.Name }) {
				out = append(out, g)
			}
		}
	}
	return out
}

func (g Group) calls() []string {
	var names []string
	for _, r := range g.Rules {
		if !slices.Contains(names, r.Call) {
			names = append(names, r.Call)
		}
	}
	return names
}

func (g Group) answer() string {
	var answers []string
	for _, r := range g.Rules {
		if a := r.Action.String(); !slices.Contains(answers, a) {
			answers = append(answers, a)
		}
	}
	return strings.Join(answers, " or ")
}

func (a Action) String() string {
	switch a {
	case Allow:
		return "allow"
	case KillProcess:
		return "kill"
	case Errno(ePERM):
		return "EPERM"
	case Errno(eNOSYS):
		return "ENOSYS"
	case Errno(eAFNOSUPPORT):
		return "EAFNOSUPPORT"
	case Errno(ePROTONOSUPPORT):
		return "EPROTONOSUPPORT"
	}
	return fmt.Sprintf("%#x", uint32(a))
}
