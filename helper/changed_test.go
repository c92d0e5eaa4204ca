package helper

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestChangedIn reads an upper directory: what is named decides, what is odd makes
// the answer unknown.
func TestChangedIn(t *testing.T) {
	dir := t.TempDir()
	top, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, ".git"), 0o755), os.Mkdir(filepath.Join(dir, "merged"), 0o755), os.Mkdir(filepath.Join(dir, "opaque"), 0o755),
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o644), os.Symlink("/etc", filepath.Join(dir, "link")),
		unix.Mknod(filepath.Join(dir, "gone"), unix.S_IFCHR, 0), unix.Setxattr(filepath.Join(dir, "opaque"), "user.overlay.opaque", []byte("y"), 0),
		os.WriteFile(filepath.Join(dir, "opaque", "f"), nil, 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	look := func(sub string) (files, gone, below []string, known bool) {
		var res ChangedResult
		below, known = changedIn(top, sub, &res)
		for _, f := range res.Files {
			files = append(files, string(f))
		}
		for _, f := range res.Gone {
			gone = append(gone, string(f))
		}
		slices.Sort(files)
		slices.Sort(below)
		_, _ = top.Seek(0, 0) // the directory is read again
		return files, gone, below, known
	}
	files, gone, below, known := look("")
	if got := strings.Join(files, ",") + "|" + strings.Join(gone, ",") + "|" + strings.Join(below, ","); !known || got != "file,link|gone|merged,opaque" {
		t.Errorf("the top has %s, known %v", got, known)
	}
	if files, gone, below, known := look("opaque"); !known || !slices.Equal(files, []string{"opaque/f"}) || !slices.Equal(gone, []string{"opaque"}) || len(below) > 0 {
		t.Errorf("the opaque directory has %v %v %v, known %v", files, gone, below, known)
	}
	for name, make := range map[string]func(string) error{
		"pipe":   func(p string) error { return unix.Mkfifo(p, 0o644) },
		"socket": func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o644, 0) },
		".git":   func(p string) error { return os.Mkdir(p, 0o755) },
	} {
		p := filepath.Join(dir, "merged", name)
		if err := make(p); err != nil {
			t.Fatal(err)
		}
		if _, _, _, known := look("merged"); known {
			t.Errorf("with a %s the answer is known", name)
		}
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, _, known := look("link"); known {
		t.Error("a symbolic link is followed")
	}
}
