package backend

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"yoi.dev/yoi-runtime/api"
)

// plain is a terminal's lines with their classes in braces.
func plain(lines [][]Span) string {
	var b strings.Builder
	for _, l := range lines {
		for _, s := range l {
			if s.C != "" {
				b.WriteString("{" + s.C + "}")
			}
			b.WriteString(s.T)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestTerminal(t *testing.T) {
	for in, want := range map[string]string{
		"a\nb":                                        "a\nb\n",
		"\x1b[1;31mred\x1b[0m plain":                  "{b f1}red plain\n",
		"\x1b[38;5;196mx\x1b[39my":                    "{f9}xy\n",
		"\x1b[38;2;10;200;10mx":                       "{f2}x\n",
		"\x1b[48;5;4mx\x1b[49m":                       "{g4}x\n",
		"10%\r20%\r\n":                                "20%\n",
		"\x1b]0;title\x07x":                           "x\n",
		"\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\": "link\n",
		"\x1b]52;c;ZXZpbA==\x07x":                     "x\n",
		"\x1b[2J\x1b[Hx":                              "x\n",
		"a\x00\x07b":                                  "ab\n",
		"abc\b\bX":                                    "aX\n",
		"\u202egnp.exe":                               "\uFFFDgnp.exe\n",
		"\xff\xfe":                                    "\uFFFD\uFFFD\n",
		"\x1bP1;2qsixel\x1b\\y":                       "y\n",
		"<script>":                                    "<script>\n",
	} {
		for _, step := range []int{len(in), 1} { // whole, and byte by byte
			var term Terminal
			for i := 0; i < len(in); i += step {
				term.Write([]byte(in[i:min(i+step, len(in))]))
			}
			if got := plain(term.Take()); got != want {
				t.Errorf("%q by %d: %q, want %q", in, step, got, want)
			}
		}
	}
	var long Terminal
	long.Write([]byte(strings.Repeat("x", 100<<10)))
	if got := plain(long.Take()); len(got) > maxLogLine+100 || !strings.Contains(got, "left out") {
		t.Errorf("a long line has %d bytes", len(got))
	}
}

func TestParsePatch(t *testing.T) {
	got := parsePatch(`diff --git a/a.txt b/a.txt
index 1..2 100644
--- a/a.txt
+++ b/a.txt
@@ -1,3 +1,3 @@ func
 one
-two
--- a/looks/like/a/header
+2
+++ b/so/does/this
 three
\ No newline at end of file
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git "a/\303\274" "b/\303\274"
--- /dev/null
+++ "b/\303\274"
@@ -0,0 +1 @@
+y
diff --git a/blob b/blob
GIT binary patch
literal 3
Kcmb

`)
	_ = got
	lines := func(path string) (out []string) {
		for _, h := range got[path].hunks {
			for _, l := range h.Lines {
				out = append(out, l.Kind+l.Text)
			}
		}
		return out
	}
	if l := lines("gone"); !slices.Equal(l, []string{"-x"}) {
		t.Errorf("gone: %q", l)
	}
	if l := lines(`"\303\274"`); !slices.Equal(l, []string{"+y"}) {
		t.Errorf("quoted: %q of %v", l, got)
	}
	if l := lines("a.txt"); len(l) < 6 || l[1] != "-two" || l[2] != "--- a/looks/like/a/header" {
		t.Errorf("a.txt: %q", l)
	}
	if _, ok := got["looks/like/a/header"]; ok {
		t.Error("a line of a file is taken for a header")
	}
	if shown("a\tb\u202e") != "a\tb\\u202e" {
		t.Errorf("%q", shown("a\tb\u202e"))
	}
}

func FuzzTerminal(f *testing.F) {
	f.Add([]byte("\x1b[1;31mred\x1b[0m\r\n\x1b]0;t\x07"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var whole, parts Terminal
		whole.Write(b)
		for i := range b {
			parts.Write(b[i : i+1])
		}
		lines := whole.Take()
		for _, l := range lines {
			for _, s := range l {
				if !utf8.ValidString(s.T) || strings.ContainsFunc(s.T, func(r rune) bool { return r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }) {
					t.Fatalf("%q comes through", s.T)
				}
				if strings.Trim(s.C, "bdiurfg0123456789 ") != "" {
					t.Fatalf("the class %q", s.C)
				}
			}
		}
		if whole.Ended() != strings.Count(string(b), "\n") && len(b) < 200 && !strings.Contains(string(b), "\x1b") {
			t.Fatalf("%d lines of %q", whole.Ended(), b)
		}
	})
}

func FuzzPatch(f *testing.F) {
	f.Add("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
	f.Fuzz(func(t *testing.T, s string) {
		n := 0
		for _, file := range parsePatch(s) {
			for _, h := range file.hunks {
				for _, l := range h.Lines {
					if n++; !utf8.ValidString(l.Text) || strings.ContainsAny(l.Text, "\x1b\r\n") {
						t.Fatalf("%q", l.Text)
					}
				}
			}
		}
		if n > maxLinesOfDiff {
			t.Fatalf("%d lines", n)
		}
	})
}

// FuzzBodies: no body makes a decoder panic, or comes back as another request.
func FuzzBodies(f *testing.F) {
	f.Add([]byte(`{"repository_id":"a","scope":["b"]}`))
	f.Add([]byte(`{"allocation_id":"a","command":["b"],"limits":{"memory":"2G"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(v any) {
			if api.DecodeStrict(b, v) != nil {
				return
			}
			if _, err := json.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		check(&CreateRequest{})
		check(&SpawnRequest{})
		check(&CleanUpRequest{})
		check(&StopRequest{})
	})
}

func FuzzForms(f *testing.F) {
	f.Add("command=sh+-c+%27a+b%27&env=A%3Db", `sh -c 'a b'`)
	f.Fuzz(func(t *testing.T, form, command string) {
		if v, err := url.ParseQuery(form); err == nil && checkForm(v, []string{"command", "env", "rule*"}) == nil {
			for name, values := range v {
				if len(values) != 1 && name != "rule" || !slices.Contains([]string{"command", "env", "rule", "csrf"}, name) {
					t.Fatalf("%q is taken", form)
				}
			}
			if env, err := parseEnv(v.Get("env")); err == nil {
				for k := range env {
					if k == "" || strings.Contains(k, "=") {
						t.Fatalf("the variable %q", k)
					}
				}
			}
		}
		if argv, err := splitCommand(command); err == nil {
			back, err := splitCommand(quoteCommand(argv))
			if err != nil || !slices.Equal(back, argv) {
				t.Fatalf("%q became %q", argv, back)
			}
		}
		if p := localPath(command); !strings.HasPrefix(p, "/") || strings.HasPrefix(p, "//") {
			t.Fatalf("a login leads to %q", p)
		}
	})
}
