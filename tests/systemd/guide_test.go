package systemd

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/host"
)

func guide(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// blocks are the fenced blocks of commands in a document, in order. Every block has
// a language, so that none is overlooked.
func blocks(t *testing.T, text string) (out []string) {
	t.Helper()
	lang, body := "", ""
	for line := range strings.Lines(text) {
		fence, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "```")
		switch {
		case !ok && lang != "":
			body += line
		case ok && lang == "":
			if lang = fence; lang == "" {
				t.Fatalf("a block without a language, behind %q", body)
			}
			body = ""
		case ok:
			if lang == "sh" {
				out = append(out, body)
			}
			lang = ""
		}
	}
	if lang != "" || len(out) == 0 {
		t.Fatal("a block does not end, or there is none")
	}
	return out
}

// TestGuide does what the operator's guide says, word for word, in one shell.
func TestGuide(t *testing.T) {
	h := host.New(t)
	debs, err := pack()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(debs[0])
	if err != nil {
		t.Fatal(err)
	}
	h.Write("/var/tmp/guide/yoi-runtime_1.0_amd64.deb", string(b), 0o644)
	h.OK("useradd", "ada")
	h.OK("install", "-d", "/var/backups")
	h.OK("sh", "-c", `mkdir /srv/app && cd /srv/app && git init -q -b main && echo hello >README && git add . &&
		git -c user.name=a -c user.email=a@example.com commit -qm first`)
	script := "set -eu\ncd /var/tmp/guide\n"
	steps := blocks(t, guide(t))
	for i, s := range steps {
		script += fmt.Sprintf("echo '=== block %d'\n%s", i+1, s)
	}
	h.Write("/var/tmp/guide.sh", script, 0o644)
	r := h.Run("sh", "/var/tmp/guide.sh")
	if r.Code != 0 {
		i := strings.LastIndex(r.Stdout, "=== block")
		t.Fatalf("the guide fails with %d in\n%s\n%s", r.Code, r.Stdout[max(0, i):], r.Stderr)
	}
	for _, want := range []string{
		"exit 3\n", "\nworking\n", "+++ b/stamp", // the first Worker, and what it did
		"stopped by systemd", "Slice=yoi-workspace-ws", // the second
		"every hash right",
	} {
		if !strings.Contains(r.Stdout+r.Stderr, want) {
			t.Errorf("what the guide shows lacks %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s\n%s", r.Stdout, r.Stderr)
	}
}

// TestGuideCodes: the guide tells of every diagnostic that its caller cannot mend, and
// of no other.
func TestGuideCodes(t *testing.T) {
	_, table, _ := strings.Cut(guide(t), "## When something is refused")
	var told, want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| .+ \\|$").FindAllStringSubmatch(table, -1) {
		told = append(told, m[1])
	}
	for _, i := range policy.Catalog() {
		if i.Status >= 500 {
			want = append(want, string(i.Code))
		}
	}
	slices.Sort(told)
	slices.Sort(want)
	if !slices.Equal(told, want) {
		t.Errorf("the guide tells of\n%q, not of\n%q", told, want)
	}
}
