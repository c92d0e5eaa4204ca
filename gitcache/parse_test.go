package gitcache

import (
	"strings"
	"testing"
	"unicode/utf8"

	"yoi.dev/yoi-runtime/policy"
)

func TestSourceConfig(t *testing.T) {
	got := parseSourceConfig([]byte("; comment\n[Core]\n\tBare = true # c\n\tfilemode=false\n  autocrlf = \"input\" ; x\n\teol = cr\\\nlf\n" +
		"[core \"sub\"]\n\tignorecase = true\n[extensions] objectFormat = SHA256\n[remote \"o]r\\\"igin\"]\n\tpromisor\n[include]\n\tpath = /etc/passwd\n"))
	want := sourceConfig{bare: true, sha256: true, partialClone: true, fileMode: "false", autoCRLF: "input", eol: "crlf"}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	// A value that would write a further line into the view's config is dropped.
	if got := parseSourceConfig([]byte("[core]\n\tautocrlf = \"true\\n\\tfsmonitor = /evil\"\n\teol = lf]\n")); got != (sourceConfig{}) {
		t.Errorf("%+v", got)
	}
}

func FuzzSourceConfig(f *testing.F) {
	for _, s := range []string{"[core]\nbare", "[a \"b\\\"c\"] d = \"e\\\"f\" # g\n", "[", "[\"", "\\\n\\", "[x]\n=\n", "[core]\n\tautocrlf = \"true\\nfsmonitor=x\"\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		view := string(parseSourceConfig(b).viewText())
		for line := range strings.Lines(view) {
			key, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch key {
			case "[core]", "[extensions]", "repositoryformatversion", "bare", "filemode", "ignorecase", "autocrlf", "eol", "trustctime", "checkstat", "objectformat":
			default:
				t.Fatalf("the source wrote %q into the view", line)
			}
		}
	})
}

func FuzzParsers(f *testing.F) {
	f.Add("1 .M N... 100644 100644 100644 a b path\x00? x\x00u UU N... 1 2 3 4 a b c path\x00")
	f.Add("Receiving objects:  12% (3/25), 1.20 MiB | 2.30 MiB/s")
	f.Add("tree x\ncommitter a <b> 1 +0\n\nsubject\n")
	f.Fuzz(func(t *testing.T, s string) {
		if changes, err := parseStatus(s); err == nil && len(changes) > 0 {
			d := policy.AsDiagnostic(dirtyError(changes, nil))
			for _, i := range d.Items {
				if !utf8.ValidString(i.Name) || strings.ContainsAny(i.Name, "\x1b\n\r\x00") {
					t.Fatalf("unsafe: %q", i.Name)
				}
			}
		}
		if p, ok := parseProgress(s); ok && (p.Phase == "" || p.Bytes < 0) {
			t.Fatalf("%+v", p)
		}
		if m := parseCommit(s); strings.ContainsAny(m.Subject, "\x1b\n") {
			t.Fatalf("unsafe subject %q", m.Subject)
		}
		if src, err := parseURL(s); err == nil && src.password() != "" && strings.Contains(src.Redacted(), ":"+src.password()+"@") && src.password() != "xxxxx" {
			t.Fatalf("the password is shown: %q", src.Redacted())
		}
	})
}
