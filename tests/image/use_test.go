package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	it "yoi.dev/yoi-runtime/cow/layers/imagetest"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// place is a directory with the programs, a repository and an image store of its
// own.
type place struct {
	rig.Place
	y    rig.Yoi
	repo testenv.Repo
}

func newPlace(t *testing.T, fs string, uid int, tags ...string) place {
	t.Helper()
	p := rig.NewPlace(t, fs, uid)
	y := p.Yoi(t, tags...)
	y.Env = append(y.Env, "YOI_LAYERS="+rig.Program(t, "yoi-layers"))
	return place{p, y, p.Give(t, testenv.RepoSmall(t))}
}

// archive writes an archive that the place's user can read.
func (p place) archive(t testing.TB, b []byte) string {
	t.Helper()
	f, err := os.CreateTemp(p.Dir, "archive*.tar")
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil {
		err = f.Chown(p.UID, p.UID)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// run runs a shell command in an image.
func (p place) run(t testing.TB, image, command string) rig.Result {
	t.Helper()
	return p.y.Run(t, "run", "--repo", p.repo.Dir, "--image", image, "--", "/bin/sh", "-c", command)
}

// busybox is a two-layer image.
func busybox(t testing.TB) it.Image {
	return it.Image{
		Ref: "example.org/tools/busybox:1.35", Env: []string{"PATH=/bin", "IMAGE_SAYS=hello", "HOME=/root"}, Compress: "gzip",
		Layers: [][]byte{
			it.Layer(t, append(it.Busybox(t), it.File("etc/removed", "x", 0o644), it.File("etc/changed", "old", 0o644), it.Dir("opt/", 0o755),
				it.File("opt/hidden", "x", 0o644), it.File("etc/secret", "root's", 0o600), it.File("etc/www", "x", 0o640).Owned(33, 33))...),
			it.Layer(t, it.File("etc/.wh.removed", "", 0), it.File("etc/changed", "new", 0o644), it.Dir("opt/", 0o755), it.File("opt/.wh..wh..opq", "", 0), it.File("opt/shown", "x", 0o644)),
		},
	}
}

const look = `cat /etc/changed; ls /opt; test -e /etc/removed || echo removed; ls /workspace/small >/dev/null && echo repository
echo $IMAGE_SAYS $HOME; grep -c image /etc/passwd; cat /etc/resolv.conf; touch /new 2>/dev/null || echo read-only; touch /tmp/x /scratch/x $HOME/x /dev/shm/x && echo writable`

const seen = "newshown\nremoved\nrepository\nhello /home/worker\n0\nread-only\nwritable\n"

// TestEveryWayIn: each kind of archive, with each driver, on each file system, as
// root and as an ordinary user.
func TestEveryWayIn(t *testing.T) {
	testenv.Root(t)
	img := busybox(t)
	for _, fs := range rig.FileSystems() {
		for _, uid := range []int{0, rig.Ordinary} {
			t.Run(rig.Place{FS: fs, UID: uid}.String(), func(t *testing.T) {
				p := newPlace(t, fs, uid)
				machine := rig.Before(t)
				layout := filepath.Join(p.Dir, "layout")
				for n, b := range it.OCI(t, img) {
					if err := os.MkdirAll(filepath.Dir(filepath.Join(layout, n)), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(filepath.Join(layout, n), b, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				sources := map[string]string{
					"layout": layout, "oci": p.archive(t, it.Tar(t, it.OCI(t, img))), "docker": p.archive(t, it.Tar(t, it.Docker(t, img))),
				}
				if fs != "ext4" { // what an archive is read from does not depend on it
					sources = map[string]string{"oci": sources["oci"]}
				}
				for _, driver := range []string{"overlay", "vfs"} {
					for kind, source := range sources {
						name := kind + "-" + driver
						var got runtime.Image
						p.y.Run(t, "image", "import", source, "--json", "--driver", driver, "--name", name).Want(t, 0).JSON(t, &got)
						if string(got.Name) != name || string(got.Driver) != driver || got.Layers != 2 || got.Bytes == 0 || len(got.Diagnostics) != 0 {
							t.Errorf("imported %+v", got)
						}
						if r := p.run(t, name, look).Want(t, 0); r.Stdout != seen {
							t.Errorf("%s: the Worker sees\n%s\nnot\n%s", name, r.Stdout, seen)
						}
					}
				}
				owners := p.run(t, "oci-overlay", "stat -c %u:%g:%a /etc/www /etc/secret; cat /etc/secret 2>/dev/null || echo refused").Want(t, 0).Stdout
				want := "33:33:640\n0:0:600\nrefused\n"
				if uid != 0 {
					want = "1000:1000:640\n1000:1000:600\nroot's"
				}
				if owners != want {
					t.Errorf("owners are %q, want %q", owners, want)
				}
				for _, driver := range []string{"overlay", "vfs"} {
					for kind := range sources {
						p.y.OK(t, "image", "rm", kind+"-"+driver)
					}
				}
				p.empty(t)
				machine.Unchanged(t)
			})
		}
	}
}

// empty checks that no image, layer or ledger record is left.
func (p place) empty(t testing.TB) {
	t.Helper()
	rig.Clean(t, p.y.Root)
	for _, dir := range []string{"images", "layers/overlay", "layers/overlay/l", "layers/vfs/dir", "owned/overlay", "owned/overlay/l", "owned/vfs/dir"} {
		entries, _ := os.ReadDir(filepath.Join(p.y.Root, "image-store", dir))
		for _, e := range entries {
			if e.IsDir() && e.Name() == "l" || strings.HasPrefix(e.Name(), ".has-") {
				continue
			}
			t.Errorf("left in the image store: %s/%s", dir, e.Name())
		}
	}
}

// TestNames: the archive's own name, a name that is taken, the same image twice.
func TestNames(t *testing.T) {
	testenv.Root(t)
	p := newPlace(t, "disk", 0)
	img := busybox(t)
	archive := p.archive(t, it.Tar(t, it.OCI(t, img)))
	p.y.OK(t, "image", "import", archive)
	p.y.OK(t, "image", "import", archive)
	if list := p.y.OK(t, "image", "list"); strings.Count(list, "busybox-1.35") != 1 {
		t.Errorf("listed are\n%s", list)
	}
	other := img
	other.Layers = img.Layers[:1]
	p.y.Run(t, "image", "import", p.archive(t, it.Tar(t, it.OCI(t, other)))).Refused(t, 1, policy.CodeImageExists)
	nameless := img
	nameless.Ref = ""
	p.y.Run(t, "image", "import", p.archive(t, it.Tar(t, it.OCI(t, nameless)))).Refused(t, 1, policy.CodeImageInvalid)
	both := p.archive(t, it.Tar(t, it.OCI(t, img, other)))
	p.y.Run(t, "image", "import", both, "--name", "x").Refused(t, 1, policy.CodeImageAmbiguous)
	p.y.Run(t, "image", "import", "--name", "../x", archive).Refused(t, 1, policy.CodeIDInvalid)
	p.y.Run(t, "image", "import", filepath.Join(p.Dir, "none")).Refused(t, 1, policy.CodeSourceUnreadable)
	p.y.Run(t, "image", "import", p.Dir).Refused(t, 1, policy.CodeImageInvalid)
	p.y.Run(t, "image", "show", "none").Refused(t, 1, policy.CodeImageUnknown)
	p.y.Run(t, "image", "rm", "none").Refused(t, 1, policy.CodeImageUnknown)
	p.run(t, "none", "true").Refused(t, 125, policy.CodeImageUnknown)
	p.y.OK(t, "image", "rm", "busybox-1.35")
	p.empty(t)
}

// TestSharedLayers: what two images have in common is kept once, and goes with
// the last of them.
func TestSharedLayers(t *testing.T) {
	testenv.Root(t)
	for _, driver := range []string{"overlay", "vfs"} {
		p := newPlace(t, "disk", 0)
		img := busybox(t)
		more := img
		more.Layers = append(append([][]byte{}, img.Layers...), it.Layer(t, it.File("opt/more", "x", 0o644)))
		p.y.OK(t, "image", "import", "--driver", driver, "--name", "a", p.archive(t, it.Tar(t, it.OCI(t, img))))
		p.y.OK(t, "image", "import", "--driver", driver, "--name", "b", p.archive(t, it.Tar(t, it.OCI(t, more))))
		dir := map[string]string{"overlay": "layers/overlay/*/diff", "vfs": "layers/vfs/dir/*"}[driver]
		count := func() int {
			list, err := filepath.Glob(filepath.Join(p.y.Root, "image-store", dir))
			if err != nil {
				t.Fatal(err)
			}
			return len(list)
		}
		if n := count(); n != 3 {
			t.Errorf("%s: %d layers are kept, not 3", driver, n)
		}
		p.y.OK(t, "image", "rm", "a")
		if n := count(); n != 3 {
			t.Errorf("%s: %d layers are left of 3 in use", driver, n)
		}
		if r := p.run(t, "b", "ls /opt").Want(t, 0); r.Stdout != "more\nshown\n" {
			t.Errorf("%s: %q", driver, r.Stdout)
		}
		p.y.OK(t, "image", "rm", "b")
		p.empty(t)
	}
}

// TestInUse: an image stays while a workspace stands on it, live Worker or not,
// and a workspace stays on its image whatever gets the name later.
func TestInUse(t *testing.T) {
	testenv.Root(t)
	p := newPlace(t, "disk", 0)
	p.y.OK(t, "image", "import", "--name", "a", p.archive(t, it.Tar(t, it.OCI(t, busybox(t)))))
	p.y.OK(t, "repo", "add", p.repo.Dir)
	var ws runtime.Workspace
	p.y.Run(t, "ws", "create", "small", "--image", "a", "--json").Want(t, 0).JSON(t, &ws)
	if ws.RootImage == nil || ws.RootImage.Name != "a" || !strings.HasPrefix(ws.RootImage.Digest, "sha256:") {
		t.Errorf("the workspace stands on %+v", ws.RootImage)
	}
	var ev runtime.Evidence
	p.y.Run(t, "ws", "evidence", string(ws.ID), "--json").Want(t, 0).JSON(t, &ev)
	if ev.RootImage == nil || *ev.RootImage != *ws.RootImage || ev.SandboxPolicy.Root != "image:a" {
		t.Errorf("the evidence is %+v %+v", ev.RootImage, ev.SandboxPolicy)
	}
	p.y.Run(t, "image", "rm", "a").Refused(t, 1, policy.CodeImageInUse)
	var w runtime.Worker
	p.y.Run(t, "worker", "spawn", "--json", string(ws.ID), "--", "sh", "-c", "cat /etc/changed; sleep 60").Want(t, 0).JSON(t, &w)
	p.y.Run(t, "image", "rm", "a").Refused(t, 1, policy.CodeImageInUse)
	p.y.OK(t, "worker", "stop", string(w.ID))
	if log := p.y.OK(t, "worker", "logs", string(w.ID)); log != "new" {
		t.Errorf("the Worker saw %q", log)
	}
	p.y.OK(t, "ws", "rm", string(ws.ID))
	p.y.OK(t, "image", "rm", "a")
	p.empty(t)
}

// TestFork: a fork stands on its ancestor's image, and holds it when that is gone.
func TestFork(t *testing.T) {
	testenv.Root(t)
	p := newPlace(t, "disk", 0)
	p.y.OK(t, "image", "import", "--name", "a", p.archive(t, it.Tar(t, it.OCI(t, busybox(t)))))
	p.y.OK(t, "repo", "add", p.repo.Dir)
	var ws, fork runtime.Workspace
	p.y.Run(t, "ws", "create", "small", "--image", "a", "--json").Want(t, 0).JSON(t, &ws)
	p.y.Run(t, "ws", "fork", string(ws.ID), "--json").Want(t, 0).JSON(t, &fork)
	if fork.RootImage == nil || *fork.RootImage != *ws.RootImage {
		t.Errorf("the fork stands on %+v", fork.RootImage)
	}
	p.y.OK(t, "ws", "rm", string(ws.ID))
	p.y.Run(t, "image", "rm", "a").Refused(t, 1, policy.CodeImageInUse)
	var w runtime.Worker
	p.y.Run(t, "worker", "spawn", "--json", string(fork.ID), "--", "cat", "/etc/changed").Want(t, 0).JSON(t, &w)
	rig.Eventually(t, "the Worker has ended", func() bool { return strings.Contains(p.y.OK(t, "worker", "show", string(w.ID)), "exited") })
	if log := p.y.OK(t, "worker", "logs", string(w.ID)); log != "new" {
		t.Errorf("the fork's Worker saw %q", log)
	}
	p.y.OK(t, "ws", "rm", string(fork.ID))
	p.y.OK(t, "image", "rm", "a")
	p.empty(t)
}

// TestMinimal: an empty root, in which a static program of the repository runs
// and nothing of the host or an image is to be seen.
func TestMinimal(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := newPlace(t, "disk", uid)
		rig.Command(t, "sh", "-c", `cp /bin/busybox "$1"/busybox && cd "$1" && git -c safe.directory='*' add busybox && git -c safe.directory='*' -c user.name=a -c user.email=a@b commit -qm busybox && chown -R "$2:$2" .`, "sh", p.repo.Dir, itoa(uid))
		r := p.y.Run(t, "run", "--repo", p.repo.Dir, "--root", "minimal", "--", "./busybox", "sh", "-c", "./busybox ls / /etc; ./busybox test -e /usr || ./busybox echo none").Want(t, 0)
		want := "/:\ndev\netc\nhome\nproc\nrun\nscratch\ntmp\nvar\nworkspace\n\n/etc:\ngitconfig\ngroup\nhostname\nhosts\nmtab\nnsswitch.conf\npasswd\nnone\n"
		if r.Stdout != want {
			t.Errorf("uid %d sees\n%s", uid, r.Stdout)
		}
		p.y.Run(t, "run", "--repo", p.repo.Dir, "--root", "minimal", "--", "sh").Refused(t, 127, policy.CodeCommandNotFound)
		p.y.Run(t, "run", "--repo", p.repo.Dir, "--root", "none", "--", "sh").Refused(t, 125, policy.CodePolicyInvalid)
		p.y.Run(t, "run", "--repo", p.repo.Dir, "--root", "minimal", "--image", "x", "--", "sh").Want(t, 125)
		rig.Clean(t, p.y.Root)
	}
}
