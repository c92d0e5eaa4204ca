package gitwork

import (
	"archive/tar"
	"bytes"
	_ "embed"
	"errors"
	"io"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

//go:embed testdata/work.sh
var workScript string

// TestGitWorks does with git in the sandbox what people do, and then looks
// whether the cache is what it was, and whether anything that the Worker could
// read names a place on the host.
func TestGitWorks(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	rig.EachPlace(t, func(t *testing.T, p rig.Place) {
		repo := p.Give(t, small)
		yoi := p.Yoi(t)
		for _, w := range p.Ways(t, yoi, repo) {
			t.Run(w.String(), func(t *testing.T) {
				yoi.OK(t, w.Run("--", "true")...)
				before := rig.Contents(t, rig.Cache(yoi.Root, w.ID)...)
				r := yoi.Run(t, w.Run("--", "sh", "-c", workScript)...)
				files := untar(t, r)
				if r.Code != 0 {
					t.Fatalf("exit %d\n%s\n%s", r.Code, r.Stderr, files["out/log"])
				}
				after := rig.Contents(t, rig.Cache(yoi.Root, w.ID)...)
				for _, d := range rig.Difference(before, after) {
					t.Errorf("the cache changed: %s", d)
				}
				noHostPath(t, files, p.Dir, repo.Dir, "repository-cache", "execution-workspaces", rig.Canary)
			})
		}
		rig.Clean(t, yoi.Root)
	})
}

// untar reads the script's archive; a failed script may have written none.
func untar(t *testing.T, r rig.Result) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	in := tar.NewReader(strings.NewReader(r.Stdout))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("exit %d, no archive: %v\n%s\n%.2000s", r.Code, err, r.Stderr, r.Stdout)
		}
		b, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[path.Clean(h.Name)] = append(b, h.Linkname...)
	}
	for _, must := range []string{"out/log", "out/env", "out/links", ".git/config", ".git/HEAD", ".git/index", ".git/objects/info/alternates"} {
		if r.Code == 0 && len(files[must]) == 0 {
			t.Errorf("the archive holds no %s", must)
		}
	}
	return files
}

// noHostPath looks for host paths in everything that the Worker could read.
// The kernel itself tells a bind mount's root below its file system's root in
// mountinfo, proc_pid_mountinfo(5), and no mount can hide that: there the
// names must be relative to the Runtime root's own file system.
func noHostPath(t *testing.T, files map[string][]byte, forbidden ...string) {
	t.Helper()
	for name, b := range files {
		if name == "out/mountinfo" {
			continue
		}
		for _, f := range forbidden {
			if i := bytes.Index(b, []byte(f)); i >= 0 {
				t.Errorf("%s names %q: …%s…", name, f, b[max(0, i-60):min(len(b), i+100)])
			}
		}
	}
	top := filepath.Dir(forbidden[0])
	if bytes.Contains(files["out/mountinfo"], []byte(top)) {
		t.Errorf("mountinfo names the mount point of the Runtime root's file system:\n%s", files["out/mountinfo"])
	}
}
