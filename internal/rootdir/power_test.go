package rootdir_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestWriteNewOutlivesPowerFailure copies the disk at the moment at which WriteNew
// returns, and mounts the copy: the new file is there, in the new directory that it
// was made in, and whole. What was only written is not, or the test shows nothing.
func TestWriteNewOutlivesPowerFailure(t *testing.T) {
	testenv.Root(t)
	for _, c := range []struct {
		fs      string
		size    int
		options string
	}{{"ext4", 32, ""}, {"xfs", 320, "nouuid"}, {"btrfs", 128, ""}} {
		t.Run(c.fs, func(t *testing.T) {
			dir := testenv.FS(t, c.fs, c.size)
			root, err := rootdir.Open(mkdir(t, dir, "rt"))
			if err != nil {
				t.Fatal(err)
			}
			settle(t, dir)
			work, err := root.Mkdir("work", 0o700)
			if err != nil {
				t.Fatal(err)
			}
			work.Close()
			const content = "what has to last\n"
			if err := root.WriteNew("work/lasts", []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "rt/work/written"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			after := t.TempDir()
			image := copyDisk(t, dir)
			if err := root.WriteNew("work/lasts", nil, 0o600); !os.IsExist(err) {
				t.Errorf("a second file of that name: %v", err)
			}
			root.Close()
			mount(t, image, after, c.fs, c.options)
			b, err := os.ReadFile(filepath.Join(after, "rt/work/lasts"))
			if err != nil || string(b) != content {
				t.Errorf("after the power failure the file holds %q, %v", b, err)
			}
			if b, err := os.ReadFile(filepath.Join(after, "rt/work/written")); err == nil && len(b) > 0 {
				t.Errorf("what nobody synced is there too: %q", b)
			}
		})
	}
}

func mkdir(t *testing.T, dir, name string) string {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.Mkdir(p, 0o700); err != nil {
		t.Fatal(err)
	}
	return p
}

func settle(t *testing.T, dir string) {
	t.Helper()
	d, err := os.Open(dir)
	if err == nil {
		err = unix.Syncfs(int(d.Fd()))
		d.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// copyDisk reads what the mounted file system's device holds now, past every cache
// of the file system's.
func copyDisk(t *testing.T, dir string) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	device := ""
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) > 6 && f[4] == dir {
			device = f[len(f)-2]
		}
	}
	from, err := os.OpenFile(device, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	image := filepath.Join(t.TempDir(), "image")
	to, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	page, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // aligned
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(page)
	if _, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, page); err != nil {
		t.Fatal(err)
	}
	return image
}

func mount(t *testing.T, image, dir, kind, options string) {
	t.Helper()
	args := []string{"-t", kind, "-o", strings.Trim("loop,"+options, ","), image, dir}
	if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
		if kind == "btrfs" && strings.Contains(string(out), "File exists") {
			testenv.NeedFile(t, "two btrfs of one id", "/sys/fs/btrfs/features/temp_fsid") // Linux 6.7
		}
		t.Fatalf("mount: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}
