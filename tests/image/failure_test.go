package image

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	it "yoi.dev/yoi-runtime/cow/layers/imagetest"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestProgramMissing: without yoi-layers there are no images, and a diagnostic
// says so; everything else works.
func TestProgramMissing(t *testing.T) {
	testenv.Root(t)
	p := newPlace(t, "disk", 0)
	archive := p.archive(t, it.Tar(t, it.OCI(t, busybox(t))))
	for _, program := range []string{"/nonexistent/yoi-layers", "/bin/true", "/bin/false", "/etc/passwd"} {
		y := p.y
		y.Env = append([]string{}, "YOI_LAYERS="+program)
		y.Run(t, "image", "import", archive).Refused(t, 1, policy.CodeImageProgramFailed)
		y.OK(t, "run", "--repo", p.repo.Dir, "--", "true")
	}
	p.empty(t)
}

// TestDiskFull: an image that does not fit leaves nothing of itself, and the room
// is there for one that does.
func TestDiskFull(t *testing.T) {
	testenv.Root(t)
	place0 := rig.NewPlaceOf(t, "ext4", 0, 64)
	p := place{place0, place0.Yoi(t), place0.Give(t, testenv.RepoSmall(t))}
	p.y.Env = append(p.y.Env, "YOI_LAYERS="+rig.Program(t, "yoi-layers"))
	large := it.Image{Compress: "gzip", Ref: "large", Layers: [][]byte{
		it.Layer(t, it.File("etc/small", "x", 0o644)), it.Layer(t, it.File("etc/large", strings.Repeat("x", 90<<20), 0o644)),
	}}
	for _, driver := range []string{"overlay", "vfs"} {
		p.y.Run(t, "image", "import", "--driver", driver, p.archive(t, it.Tar(t, it.OCI(t, large)))).Refused(t, 1, policy.CodeDiskFull)
		p.empty(t)
	}
	p.y.OK(t, "image", "import", "--name", "ok", p.archive(t, it.Tar(t, it.OCI(t, busybox(t)))))
	if r := p.run(t, "ok", look).Want(t, 0); r.Stdout != seen {
		t.Errorf("%q", r.Stdout)
	}
}

// TestAtOnce: imports, runs and removals of one image at once: each works, or is
// refused by its name, and in the end nothing is left.
func TestAtOnce(t *testing.T) {
	testenv.Root(t)
	p := newPlace(t, "disk", 0)
	archive := p.archive(t, it.Tar(t, it.OCI(t, busybox(t))))
	p.y.OK(t, "run", "--repo", p.repo.Dir, "--", "true")
	var wg sync.WaitGroup
	allowed := map[policy.Code]bool{"": true, policy.CodeImageUnknown: true, policy.CodeImageInUse: true, policy.CodeImageExists: true}
	for range 3 {
		for _, args := range [][]string{
			{"image", "import", "--name", "a", archive}, {"image", "rm", "a"}, {"image", "list"},
			{"run", "--repo", p.repo.Dir, "--image", "a", "--", "/bin/true"},
			{"run", "--repo", p.repo.Dir, "--image", "a", "--", "/bin/sh", "-c", "cat /etc/changed"},
		} {
			wg.Go(func() {
				for range 3 {
					if r := p.y.Run(t, args...); !allowed[r.Diagnostic()] || r.Diagnostic() == "" && r.Code != 0 {
						t.Errorf("yoi %s: exit %d\n%s", strings.Join(args, " "), r.Code, r.Stderr)
					}
				}
			})
		}
	}
	wg.Wait()
	if strings.Contains(p.y.OK(t, "image", "list"), "\na ") {
		p.y.OK(t, "image", "rm", "a")
	}
	p.empty(t)
}

// TestStoreIsNotTheWorkers: no path of the store, and nothing above the image, is
// to be found from inside.
func TestAttackStorePaths(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := newPlace(t, "disk", uid)
		p.y.OK(t, "image", "import", "--name", "a", p.archive(t, it.Tar(t, it.OCI(t, busybox(t)))))
		r := p.run(t, "a", `cat /proc/self/mountinfo /proc/self/mounts /proc/self/maps; readlink /proc/self/exe /proc/self/cwd /proc/self/root; ls /..; env`).Want(t, 0)
		for _, secret := range []string{p.Dir, "image-store", "layers", "owned", filepath.Base(p.y.Root) + "/"} {
			if strings.Contains(r.Stdout, secret) {
				t.Errorf("uid %d: the Worker can read %q in\n%s", uid, secret, r.Stdout)
			}
		}
	}
}

// TestInterrupted: SIGINT ends an import, and nothing is left of it.
func TestInterrupted(t *testing.T) {
	testenv.Root(t)
	p := newPlace(t, "disk", 0)
	pipe := filepath.Join(p.Dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	machine := rig.Before(t)
	cmd := p.y.Cmd("image", "import", "--name", "a", pipe)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // returns when yoi has it open
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	w.Close()
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 && code != 1 { // or it saw the end first
		t.Errorf("it ended with %d, %v", code, err)
	}
	p.empty(t)
	machine.Unchanged(t)
}

// TestKilledAlone: yoi alone is killed, not its process group, while yoi-layers
// unpacks. That ends by itself, and the next command takes the rest away.
func TestKilledAlone(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := newPlace(t, "disk", uid)
		img := busybox(t)
		for i := range 8 {
			img.Layers = append(img.Layers, it.Layer(t, it.File("opt/big", strings.Repeat(string(rune('a'+i)), 16<<20), 0o644)))
		}
		archive := p.archive(t, it.Tar(t, it.OCI(t, img)))
		machine := rig.Before(t)
		cmd := p.y.Cmd("image", "import", "--name", "a", archive)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		rig.Eventually(t, "the third layer is begun", func() bool {
			list, err := filepath.Glob(filepath.Join(p.y.Root, "image-store/*/overlay/*/diff"))
			return err == nil && len(list) > 2
		})
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		machine.Unchanged(t)
		p.y.OK(t, "image", "list")
		p.y.OK(t, "gc")
		p.empty(t)
	}
}
