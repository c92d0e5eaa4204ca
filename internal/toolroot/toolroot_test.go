package toolroot

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

// fake is a host of files in a directory: "name" of a file, "name->target" of a link.
func fake(t testing.TB, files map[string]string, links ...string) host {
	t.Helper()
	h := host{t.TempDir()}
	for name, content := range files {
		p := h.prefix + name
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range links {
		name, to, _ := strings.Cut(l, "->")
		if err := os.MkdirAll(filepath.Dir(h.prefix+name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, h.prefix+name); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func linksOf(c *Closure) (out []string) {
	for _, l := range c.Links {
		out = append(out, l.Path+"->"+l.To)
	}
	return out
}

func TestScriptsAndLinks(t *testing.T) {
	h := fake(t, map[string]string{
		"/usr/bin/dash": "", "/usr/bin/env": "", "/usr/bin/python3.11": "", "/usr/bin/tool-1": "#!/bin/sh\n", "/usr/bin/py": "#! /usr/bin/env -S A=b python3 -u\n",
		"/usr/bin/deep": "#!/usr/bin/py\n", "/usr/lib/python3/x.py": "", "/usr/bin/ssh": "", "/usr/lib/git-core/git-x": "#!/usr/bin/perl\n", "/usr/bin/git": "",
		"/usr/bin/perl": "", "/home/alice/tool": "#!/bin/sh\n", "/etc/shadow": "root", "/usr/share/git-core/templates/x": "",
	}, "/bin->usr/bin", "/usr/bin/sh->dash", "/usr/bin/python3->python3.11", "/usr/bin/tool->/etc/alternatives/tool", "/etc/alternatives/tool->/usr/bin/tool-1",
		"/usr/local/bin/alice->/home/alice/tool", "/usr/bin/shadow->/etc/shadow", "/usr/bin/loop->loop2", "/usr/bin/loop2->loop", "/usr/bin/up->../../../../usr/bin/dash",
		"/usr/lib/evil->/home/alice", "/usr/bin/gone->nowhere")
	for _, c := range []struct {
		tools               []string
		files, trees, links []string
	}{
		{[]string{"tool"}, []string{"/usr/bin/dash", "/usr/bin/tool-1"}, nil,
			[]string{"/bin->usr/bin", "/etc/alternatives/tool->/usr/bin/tool-1", "/usr/bin/sh->dash", "/usr/bin/tool->/etc/alternatives/tool"}},
		{[]string{"deep"}, []string{"/usr/bin/deep", "/usr/bin/env", "/usr/bin/py", "/usr/bin/python3.11"}, []string{"/usr/lib/python3"}, []string{"/usr/bin/python3->python3.11"}},
		{[]string{"git"}, []string{"/usr/bin/dash", "/usr/bin/git"}, []string{"/usr/lib/git-core", "/usr/share/git-core"}, []string{"/usr/bin/sh->dash"}},
		{[]string{"up"}, []string{"/usr/bin/dash"}, nil, []string{"/usr/bin/up->../../../../usr/bin/dash"}},
		{[]string{"/usr/lib/python3", "/usr/lib/python3/x.py"}, nil, []string{"/usr/lib/python3"}, nil},
		{[]string{"/usr/lib/git-core/git-x"}, []string{"/usr/bin/perl", "/usr/lib/git-core/git-x"}, nil, nil},
	} {
		got, err := h.closure(c.tools)
		if err != nil {
			t.Errorf("%v: %v", c.tools, err)
			continue
		}
		if !slices.Equal(got.Files, c.files) || !slices.Equal(got.Trees, c.trees) || !slices.Equal(linksOf(got), c.links) {
			t.Errorf("%v: files %q, trees %q, links %q", c.tools, got.Files, got.Trees, linksOf(got))
		}
		if !got.current() {
			t.Errorf("%v: not current", c.tools)
		}
	}
	for _, tool := range []string{"nosuch", "alice", "shadow", "loop", "gone", "/etc/shadow", "/home/alice/tool", "/usr/local/bin/alice", "/usr/bin/shadow", "/usr", "/bin", "/usr/lib/evil", "/usr/../etc/shadow", "/usr/bin/none"} {
		if c, err := h.closure([]string{tool}); !errors.Is(err, policy.CodeToolUnknown) {
			t.Errorf("%s: %+v, %v", tool, c, err)
		}
	}
}

// compiled are a program and a library of the machine's compiler: the library is
// found by the program's own search path, and needs another one from ld.so.conf's.
func compiled(t *testing.T) (program, lib, deep string) {
	t.Helper()
	dir := t.TempDir()
	build := func(args ...string) {
		cmd := exec.Command("cc", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("cc %q: %v\n%s", args, err, out)
		}
	}
	for name, content := range map[string]string{"deep.c": "int deep(void){return 7;}", "lib.c": "int deep(void);int lib(void){return deep();}", "main.c": "int lib(void);int main(void){return lib();}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build("-shared", "-nostdlib", "-fPIC", "-o", "libdeep.so.1", "-Wl,-soname,libdeep.so.1", "deep.c")
	build("-shared", "-nostdlib", "-fPIC", "-o", "liblib.so.1", "-Wl,-soname,liblib.so.1", "lib.c", "libdeep.so.1")
	build("-nostdlib", "-o", "main", "-Wl,-e,main,-rpath,$ORIGIN/../share/own", "main.c", "liblib.so.1", "-Wl,--allow-shlib-undefined")
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return read("main"), read("liblib.so.1"), read("libdeep.so.1")
}

func TestLibraries(t *testing.T) {
	program, lib, deep := compiled(t)
	foreign := []byte(deep)
	foreign[18] ^= 0xff // another machine's
	files := map[string]string{
		"/usr/bin/main": program, "/usr/share/own/liblib.so.1": lib, "/usr/local/lib/libdeep.so.1": string(foreign), "/opt/x": "",
		"/usr/lib/strange/libdeep.so.1.2": deep, "/etc/ld.so.conf": "include ld.so.conf.d/*.conf # comment\n", "/etc/ld.so.conf.d/a.conf": "/usr/local/lib\n/usr/lib/strange\n",
		"/usr/lib64/ld-linux-x86-64.so.2": "", "/usr/lib/strange/other.so": "",
	}
	h := fake(t, files, "/usr/lib/strange/libdeep.so.1->libdeep.so.1.2", "/lib64->usr/lib64")
	got, err := h.closure([]string{"main"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/usr/bin/main", "/usr/lib/strange/libdeep.so.1.2", "/usr/lib64/ld-linux-x86-64.so.2", "/usr/share/own/liblib.so.1"}
	if !slices.Equal(got.Files, want) || !slices.Equal(linksOf(got), []string{"/lib64->usr/lib64", "/usr/lib/strange/libdeep.so.1->libdeep.so.1.2"}) {
		t.Errorf("files %q, links %q", got.Files, linksOf(got))
	}
	delete(files, "/usr/lib/strange/libdeep.so.1.2")
	_, err = fake(t, files, "/lib64->usr/lib64").closure([]string{"main"})
	if !errors.Is(err, policy.CodeToolUnknown) || !strings.Contains(err.Error(), "libdeep.so.1") {
		t.Errorf("a missing library: %v", err)
	}
}

// What is remembered is right until something of it changes, and also then.
func TestCacheNoticesChanges(t *testing.T) {
	for name, change := range map[string]func(at string) error{
		"the file":      func(at string) error { return os.WriteFile(at+"/usr/bin/a", []byte("#!/usr/bin/c \n"), 0o755) },
		"what it loads": func(at string) error { return os.Chmod(at+"/usr/bin/b", 0o644) },
		"the link": func(at string) error {
			return errors.Join(os.Remove(at+"/usr/bin/l"), os.Symlink("c", at+"/usr/bin/l"))
		},
		"one that goes first": func(at string) error { return os.WriteFile(at+"/usr/local/bin/l", nil, 0o755) },
	} {
		h := fake(t, map[string]string{"/usr/bin/a": "#!/usr/bin/b\n", "/usr/bin/b": "", "/usr/bin/c": "", "/usr/local/bin/x": ""}, "/usr/bin/l->a")
		c, err := h.closure([]string{"l"})
		if err != nil {
			t.Fatal(err)
		}
		if !c.current() {
			t.Errorf("before %s changed: not current", name)
		}
		if err := change(h.prefix); err != nil {
			t.Fatal(err)
		}
		if c.current() {
			t.Errorf("%s changed, and nobody noticed", name)
		}
	}
}

func TestCacheAcrossProcesses(t *testing.T) {
	var kept []byte
	stored := 0
	open := func() *Cache {
		return &Cache{Load: func() ([]byte, error) { return kept, nil }, Store: func(b []byte) error { kept = b; stored++; return nil }}
	}
	first, err := open().Get([]string{"env", "sh"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := open().Get([]string{"sh", "env"})
	if err != nil || stored != 1 {
		t.Fatalf("stored %d times, %v", stored, err)
	}
	if again.Digest != first.Digest || !slices.Equal(again.Files, first.Files) || !slices.Equal(again.Links, first.Links) {
		t.Errorf("%+v", again)
	}
	kept = []byte(`{"broken`)
	if c, err := open().Get([]string{"env", "sh"}); err != nil || c.Digest != first.Digest || stored != 2 {
		t.Errorf("from a broken file: %v, %v, stored %d", c, err, stored)
	}
}

// The machine's own programs, which the suites use.
func TestThisHost(t *testing.T) {
	for _, tools := range [][]string{{"git"}, {"go"}, {"make", "gcc"}, {"coreutils"}} {
		c, err := Resolve(tools)
		if err != nil {
			t.Errorf("%v: %v", tools, err)
			continue
		}
		for _, p := range slices.Concat(c.Files, c.Trees) {
			if !inside(p, systemDirs) {
				t.Errorf("%v: %s", tools, p)
			}
		}
		if slices.ContainsFunc(c.Files, func(f string) bool { return strings.HasSuffix(f, "/ssh") || strings.HasSuffix(f, "/perl") }) {
			t.Errorf("%v: more than they load: %q", tools, c.Files)
		}
	}
}

// Whatever a file says, what is taken lies in the system's directories, and nothing
// hangs or panics.
func FuzzFile(f *testing.F) {
	f.Add([]byte("#!/bin/sh\n"))
	f.Add([]byte("#!/usr/bin/env -S A=b ../../etc/shadow"))
	f.Add([]byte("#!/usr/bin/a"))
	if b, err := os.ReadFile("/bin/true"); err == nil {
		f.Add(b[:min(len(b), 40<<10)])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h := fake(t, map[string]string{"/usr/bin/a": string(b), "/usr/bin/dash": "", "/etc/shadow": "x", "/usr/bin/env": ""}, "/bin->usr/bin", "/usr/bin/sh->dash", "/usr/lib/x->/etc")
		c, err := h.closure([]string{"a"})
		if err != nil {
			if !errors.Is(err, policy.CodeToolUnknown) {
				t.Fatal(err)
			}
			return
		}
		for _, p := range slices.Concat(c.Files, c.Trees) {
			if !inside(p, systemDirs) {
				t.Errorf("%q", p)
			}
		}
	})
}
