package patch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

const hunk = "@@ -1 +1 @@\n-one\n+two\n"

func text(name string) string {
	return "diff --git a/" + name + " b/" + name + "\nindex 5626abf..f719efd 100644\n--- a/" + name + "\n+++ b/" + name + "\n" + hunk
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name, patch string
		paths       []string
		code        policy.Code
	}{
		{"text", text("a.txt"), []string{"a.txt"}, ""},
		{"two", text("a") + text("d/b"), []string{"a", "d/b"}, ""},
		{"mail", "From 1234 Mon Sep 17 00:00:00 2001\nSubject: x\n\n---\n a | 2 +-\n\n" + text("a") + "-- \n2.39.5\n", []string{"a"}, ""},
		{"mode alone", "diff --git a/a b b/a b\nold mode 100644\nnew mode 100755\n", []string{"a b"}, ""},
		{"rename", "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n", []string{"x", "y"}, ""},
		{"new and empty", "diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n", []string{"e"}, ""},
		{"quoted", "diff --git \"a/t\\303\\251\\t\" \"b/t\\303\\251\\t\"\nnew file mode 100644\nindex 0000000..e69de29\n", []string{"té\t"}, ""},
		{"content like a header", strings.Replace(text("a"), "+two", "+++ b/../../etc/passwd", 1), []string{"a"}, ""},
		{"no newline at the end", text("a") + "\\ No newline at end of file\n", []string{"a"}, ""},
		{"symbolic link", "diff --git a/l b/l\nnew file mode 120000\nindex 0000000..1\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n\\ No newline at end of file\n", []string{"l"}, ""},
		{"mnemonic prefixes", strings.NewReplacer("a/x", "i/x", "b/x", "w/x").Replace(text("x")), []string{"x"}, ""},
		{"binary", "diff --git a/b b/b\nindex 1..2 100644\nGIT binary patch\nliteral 1\nHcmZPo00031\n\nliteral 1\nHcmZPo00031\n\n", []string{"b"}, ""},

		{"nothing", "", nil, policy.CodePatchInvalid},
		{"words", "hello\n", nil, policy.CodePatchInvalid},
		{"traditional", "--- a/x\n+++ b/x\n" + hunk, nil, policy.CodePatchInvalid},
		{"traditional after git's", text("a") + "--- a/x\n+++ b/x\n" + hunk, nil, policy.CodePatchInvalid},
		{"combined", "diff --cc a\nindex 1,2..3\n--- a/a\n+++ b/a\n@@@ -1,1 -1,1 +1,1 @@@\n", nil, policy.CodePatchInvalid},
		{"no prefixes", strings.NewReplacer("a/", "", "b/", "").Replace(text("src")), nil, policy.CodePatchInvalid},
		{"cut in a hunk", strings.TrimSuffix(text("a"), "+two\n"), nil, policy.CodePatchInvalid},
		{"cut in binary data", "diff --git a/b b/b\nindex 1..2\nGIT binary patch\nliteral 1\nHcmZPo00031\n", nil, policy.CodePatchInvalid},
		{"hunk of a huge count", strings.Replace(text("a"), "@@ -1 +1 @@", "@@ -1,99999999999 +1 @@", 1), nil, policy.CodePatchInvalid},
		{"binary left out", "diff --git a/b b/b\nindex 1..2 100644\nBinary files a/b and b/b differ\n", nil, policy.CodePatchInvalid},
		{"base85 of a wrong length", "diff --git a/b b/b\nindex 1..2\nGIT binary patch\nliteral 1\nzcmZPo00031\n\n", nil, policy.CodePatchInvalid},
		{"unknown mode", "diff --git a/x b/x\nnew file mode 020666\n", nil, policy.CodePatchInvalid},
		{"names differ without a rename", "diff --git a/x b/y\nold mode 100644\nnew mode 100755\n", nil, policy.CodePatchInvalid},
		{"unfinished quotes", "diff --git \"a/x \"b/x\nold mode 100644\n", nil, policy.CodePatchInvalid},

		{"parent", text("../x"), nil, policy.CodePatchEscapes},
		{"parent inside", text("d/../../x"), nil, policy.CodePatchEscapes},
		{"parent, quoted", "diff --git \"a/..\\057x\" \"b/..\\057x\"\nold mode 100644\nnew mode 100755\n", nil, policy.CodePatchEscapes},
		{"absolute", text("/etc/passwd"), nil, policy.CodePatchEscapes},
		{"absolute rename", "diff --git a/x b/x\nsimilarity index 100%\nrename from x\nrename to /etc/passwd\n", nil, policy.CodePatchEscapes},
		{"copy out", "diff --git a/x b/x\nsimilarity index 100%\ncopy from x\ncopy to ../x\n", nil, policy.CodePatchEscapes},
		{"into .git", text(".git/hooks/post-checkout"), nil, policy.CodePatchEscapes},
		{"into .GIT below", text("d/.GiT/config"), nil, policy.CodePatchEscapes},
		{"NUL", "diff --git \"a/x\\000\" \"b/x\\000\"\nold mode 100644\n", nil, policy.CodePatchEscapes},
		{"long name", text(strings.Repeat("x", 256)), nil, policy.CodePatchEscapes},

		{"submodule", "diff --git a/s b/s\nindex 1..2 160000\n--- a/s\n+++ b/s\n" + hunk, nil, policy.CodePatchSubmodule},
		{"new submodule", "diff --git a/s b/s\nnew file mode 160000\n", nil, policy.CodePatchSubmodule},
		{"bomb", "diff --git a/b b/b\nindex 1..2\nGIT binary patch\nliteral 99999999999\nHcmZPo00031\n\n", nil, policy.CodePatchTooLarge},
		{"many files", strings.Repeat("diff --git a/b b/b\nold mode 100644\n", MaxFiles+1), nil, policy.CodePatchTooLarge},
		{"large", strings.Repeat("x", MaxBytes+1), nil, policy.CodePatchTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Read([]byte(c.patch))
			if c.code != "" {
				if !errors.Is(err, c.code) {
					t.Fatalf("got %v, want %s", err, c.code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(s.Paths, c.paths) {
				t.Errorf("paths %q, want %q", s.Paths, c.paths)
			}
		})
	}
}

// TestGitsOwn reads what git itself writes of every kind of change.
func TestGitsOwn(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) []byte {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %s: %v", args, err)
		}
		return out
	}
	put := func(name, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git("init", "-q")
	odd := []string{"a b", "tab\there", "line\nbreak", `quo"te`, `back\slash`, "\xff\xfe", "-dash", "é", "a/b/a/b b/a", " lead", "trail "}
	for _, n := range odd {
		put(n, "one\n")
	}
	put("moved", strings.Repeat("some line\n", 50))
	put("gone", "gone\n")
	put("bin", "\x00\x01\x02")
	git("add", "-A")
	git("commit", "-q", "-m", "one")
	want := slices.Clone(odd)
	for _, n := range odd {
		put(n, "two\n")
	}
	git("mv", "moved", "moved to")
	git("rm", "-q", "gone")
	put("bin", "\x00\x01\x03")
	put("empty", "")
	if err := os.Symlink("bin", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	want = append(want, "moved", "moved to", "gone", "bin", "empty", "link")
	slices.Sort(want)
	git("add", "-A")
	for _, args := range [][]string{{}, {"-M"}, {"--no-renames"}, {"-R"}, {"-c", "core.quotePath=false"}} {
		var pre []string
		if len(args) == 2 {
			pre, args = args, nil
		}
		b := git(append(append(pre, "diff", "--binary", "HEAD"), args...)...)
		s, err := Read(b)
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, b)
		}
		if !slices.Equal(s.Paths, want) {
			t.Errorf("%q: paths\n%q, want\n%q", args, s.Paths, want)
		}
	}
}

// FuzzRead wants no panic, and of what is taken that no path leaves the tree.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		text("a"), text("../a"), "diff --git \"a/x\\001\" \"b/x\\001\"\nold mode 100644\n",
		"diff --git a/b b/b\nindex 1..2\nGIT binary patch\nliteral 1\nHcmZPo00031\n\ndelta 1\nHcmZPo00031\n\n",
		"diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n" + text(".git/config"),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Read(b)
		if err != nil {
			if policy.AsDiagnostic(err).Code == policy.CodeInternal {
				t.Fatalf("an error without a code: %v", err)
			}
			return
		}
		for _, p := range s.Paths {
			clean := filepath.Clean("/top/" + p)
			if !strings.HasPrefix(clean, "/top/") || clean != "/top/"+p || strings.Contains(strings.ToLower("/"+p+"/"), "/.git/") {
				t.Errorf("%q was taken", p)
			}
		}
	})
}
