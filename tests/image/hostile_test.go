package image

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	it "yoi.dev/yoi-runtime/cow/layers/imagetest"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestAttackImage unpacks and runs an image that tries everything that is
// neutralised, with both drivers: nothing of it has an effect on the host or in
// the sandbox.
func TestAttackImage(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		for _, driver := range []string{"overlay", "vfs"} {
			t.Run("uid "+itoa(uid)+" "+driver, func(t *testing.T) {
				p := newPlace(t, "disk", uid)
				canary := filepath.Join(p.Dir, "canary")
				if err := os.WriteFile(canary, []byte("untouched"), 0o666); err != nil {
					t.Fatal(err)
				}
				p.y.OK(t, "image", "import", "--driver", driver, "--name", "evil", p.archive(t, it.Tar(t, it.OCI(t, evil(t, p.Dir)))))
				r := p.run(t, "evil", `stat -c %a /bin/su /bin/capable; ls /dev/sda /dev/kmem /bin/fifo /redirected 2>&1 | grep -c 'No such'
id -u; cat /etc/passwd | grep -c evil; cat /etc/shadow-link /host/canary 2>/dev/null; ls /lib; ls -d /proc/self/ns; mount | grep -c 'sysfs\|/host'
test -f /dev/null && echo fake; echo x >/dev/null && echo real; test -d /workspace/small/.git && echo repository; (echo x >>/etc/passwd) 2>/dev/null && echo writable; cat /usr-link/hidden 2>/dev/null; exit 0`).Want(t, 0)
				want := "755\n755\n4\n1000\n0\nfrom-above\n/proc/self/ns\n0\nreal\nrepository\n"
				if r.Stdout != want {
					t.Errorf("the Worker sees\n%s\nnot\n%s", r.Stdout, want)
				}
				if b, _ := os.ReadFile(canary); string(b) != "untouched" {
					t.Errorf("the canary says %q", b)
				}
				checkStore(t, p, uid)
				p.y.OK(t, "image", "rm", "evil")
				p.empty(t)
			})
		}
	}
}

// evil is an image with every trick that is not refused.
func evil(t testing.TB, host string) it.Image {
	base := append(it.Busybox(t),
		it.File("bin/su", "x", 0o6755), it.File("bin/capable", "x", 0o755).WithXattr("security.capability", "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
		it.Device("dev/sda", tar.TypeBlock, 8, 0), it.Device("dev/kmem", tar.TypeChar, 1, 2), it.Device("bin/fifo", tar.TypeFifo, 0, 0),
		// Where the sandbox mounts things, and where its files are, something else is.
		it.Symlink("proc", host), it.Symlink("workspace", host), it.Symlink("scratch", "/proc/1/root"), it.Symlink("home", "../../../../../.."),
		it.File("run", "x", 0o644), it.Symlink("var", host), it.Symlink("tmp2", "/proc/self/root"), it.File("dev/null", "x", 0o666),
		it.Symlink("etc/shadow-link", "/etc/shadow"), it.Symlink("host", host), it.Symlink("usr-link", "/usr"),
		it.Dir("hidden/", 0o755), it.File("hidden/x", "x", 0o644),
		it.Symlink("lib", host),
		it.Dir("redirected-from/", 0o755), it.File("redirected-from/f", "x", 0o644))
	return it.Image{Env: []string{"LD_PRELOAD=/host/x.so", "YOI_WORKSPACE=/host", "PATH=/bin"}, Layers: [][]byte{
		it.Layer(t, base...),
		it.Layer(t,
			it.Symlink("etc/passwd", host+"/canary"), it.Symlink("etc/group", "/proc/1/environ"),
			it.File("lib/from-above", "x", 0o644),
			it.Dir("hidden/", 0o755).WithXattr("user.overlay.opaque", "y").WithXattr("trusted.overlay.opaque", "y"),
			it.Dir("redirect/", 0o755).WithXattr("user.overlay.redirect", "/redirected-from").WithXattr("trusted.overlay.redirect", "/redirected-from"),
			it.File("metacopy", "", 0o644).WithXattr("user.overlay.metacopy", "").WithXattr("user.overlay.redirect", "/etc/passwd")),
	}}
}

// checkStore looks at the layers as root: nothing on the host's disk has a setuid
// bit, is a device that is one, or belongs to a user of the host.
func checkStore(t *testing.T, p place, uid int) {
	t.Helper()
	store := filepath.Join(p.y.Root, map[bool]string{true: "image-store/layers", false: "image-store/owned"}[uid == 0])
	out := rig.Command(t, "find", store,
		"(", "-perm", "/6000", "-o", "-type", "b", "-o", "-type", "p", "-o", "-type", "s", "-o", "-uid", map[bool]string{true: "0", false: "-1"}[uid == 0], ")", "-print")
	if out != "" {
		t.Errorf("in the store are\n%s", out)
	}
	if devices := rig.Command(t, "sh", "-c", `find "$1" -type c -exec stat -c '%t:%T' {} +`, "sh", store); strings.Trim(devices, "0:\n") != "" {
		t.Errorf("devices that are no whiteouts: %s", devices)
	}
	attrs := rig.Command(t, "getfattr", "-R", "-P", "-h", "-m", "-", store)
	for _, bad := range []string{"security.capability", "trusted.overlay", "redirect", "metacopy"} {
		if strings.Contains(attrs, bad) {
			t.Errorf("the store has the attribute %s", bad)
		}
	}
}

// TestAttackRefused: an image that is refused leaves nothing, and says why.
func TestAttackRefused(t *testing.T) {
	testenv.Root(t)
	p := newPlace(t, "disk", 0)
	one := func(es ...it.Entry) it.Image {
		return it.Image{Layers: [][]byte{it.Layer(t, it.File("etc/ok", "x", 0o644)), it.Layer(t, es...)}}
	}
	bomb := one(it.File("etc/zeros", strings.Repeat("\x00", 40<<20), 0o644))
	bomb.Compress = "gzip"
	flipped := it.OCI(t, one(it.File("a", strings.Repeat("x", 4000), 0o644)))
	for n, b := range flipped {
		if len(b) > 4500 {
			flipped[n][1000] ^= 1
		}
	}
	if err := os.WriteFile(filepath.Join(p.Dir, "config"), []byte("[images]\nmax_bytes = 20_000_000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.y.OK(t, "image", "list") // makes the Runtime root
	rig.Command(t, "mv", filepath.Join(p.Dir, "config"), filepath.Join(p.y.Root, "config.toml"))
	for name, c := range map[string]struct {
		archive []byte
		code    policy.Code
	}{
		"an escape":       {it.Tar(t, it.OCI(t, one(it.File("../../../../etc/cron.d/x", "x", 0o644)))), policy.CodeImageLayerRefused},
		"through a link":  {it.Tar(t, it.OCI(t, one(it.Symlink("a", p.Dir), it.File("a/x", "x", 0o644)))), policy.CodeImageLayerRefused},
		"a hard link out": {it.Tar(t, it.OCI(t, one(it.HardLink("a", "../../../../../etc/shadow")))), policy.CodeImageLayerRefused},
		"the parent gone": {it.Tar(t, it.OCI(t, one(it.File(".wh...", "", 0)))), policy.CodeImageLayerRefused},
		"a bomb":          {it.Tar(t, it.OCI(t, bomb)), policy.CodeImageLimit},
		"another digest":  {it.Tar(t, flipped), policy.CodeImageDigest},
		"half of it":      {it.Tar(t, it.OCI(t, one(it.File("a", strings.Repeat("x", 9000), 0o644))))[:12000], policy.CodeImageInvalid},
	} {
		for _, driver := range []string{"overlay", "vfs"} {
			machine := rig.Before(t)
			r := p.y.Run(t, "image", "import", "--driver", driver, "--name", "x", p.archive(t, c.archive)).Refused(t, 1, c.code)
			if strings.Contains(r.Stderr, p.y.Root) {
				t.Errorf("%s: a host path is shown: %s", name, r.Stderr)
			}
			p.empty(t)
			machine.Unchanged(t)
		}
	}
}
