package authority

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/bundle"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// sample is a bundle's source that every user may read.
func sample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	parents(t, dir)
	err := errors.Join(
		os.MkdirAll(dir+"/skills/deep", 0o755), os.WriteFile(dir+"/agent.toml", []byte("model = 1\n"), 0o644),
		os.WriteFile(dir+"/skills/run", []byte("#!/bin/sh\necho ran\n"), 0o755), os.Symlink("../agent.toml", dir+"/skills/link"), os.Mkdir(dir+"/empty", 0o755))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// attackBundle is all that a Worker could do to one. Nothing of it works.
const attackBundle = `cd $YOI_CONFIG && pwd; cat skills/link; ./skills/run
for try in 'echo x >agent.toml' 'echo x >>skills/run' 'touch new' 'rm agent.toml' 'rm -r skills' 'mv agent.toml z' 'chmod 777 agent.toml' 'ln agent.toml /tmp/l' 'touch -d 1970-01-01 agent.toml' 'mkdir d' 'mount -o remount,rw .' 'umount .' 'mkdir /run/yoi/config2' 'mv /run/yoi/config /run/yoi/z'; do
	(eval "$try") >/dev/null 2>&1 && echo "could: $try"
done
grep ' /run/yoi/config ' /proc/self/mountinfo | cut -d' ' -f4-6`

const attacked = "/run/yoi/config\nmodel = 1\nran\n/ /run/yoi/config ro,nosuid,nodev,relatime\n"

func TestBundle(t *testing.T) {
	dir := sample(t)
	embedded(t, func(t *testing.T, p rig.Place, y rig.Yoi, repo string) {
		digest := strings.TrimSpace(y.OK(t, "bundle", "add", dir))
		if again := strings.TrimSpace(y.OK(t, "bundle", "add", dir)); again != digest {
			t.Errorf("%s became %s", digest, again)
		}
		if out := y.OK(t, "run", "--repo", repo, "--config-bundle", digest, "--", "sh", "-c", attackBundle); out != attacked {
			t.Errorf("inside:\n%s", out)
		}
		if r := y.Run(t, "run", "--repo", repo, "--config-bundle", digest, "--", "sh", "-c", "cat /proc/self/mountinfo /proc/self/mounts"); strings.Contains(r.Stdout, p.Dir) || strings.Contains(r.Stdout, digest[7:]) {
			t.Errorf("the mounts tell where the bundle is: %s", r.Stdout)
		}
		// In use, it stays; later it goes.
		y.OK(t, "repo", "add", "--id", "small", repo)
		var ws runtime.Workspace
		y.Run(t, "ws", "create", "small", "--config-bundle", digest, "--json").Want(t, 0).JSON(t, &ws)
		y.Run(t, "bundle", "rm", digest).Refused(t, 1, policy.CodeBundleInUse)
		stored := filepath.Join(y.Root, "config-bundles", strings.TrimPrefix(digest, "sha256:"))
		old := time.Now().Add(-8 * 24 * time.Hour)
		if err := os.Chtimes(stored, old, old); err != nil {
			t.Fatal(err)
		}
		y.OK(t, "gc")
		if _, err := os.Stat(stored); err != nil {
			t.Errorf("gc took a bundle that a workspace has: %v", err)
		}
		y.OK(t, "ws", "rm", string(ws.ID))
		y.OK(t, "bundle", "add", dir)
		y.OK(t, "gc")
		if _, err := os.Stat(stored); err != nil {
			t.Errorf("gc took a bundle that was stored again just now: %v", err)
		}
		if err := os.Chtimes(stored, old, old); err != nil {
			t.Fatal(err)
		}
		if out := y.OK(t, "gc", "--dry-run", "--json"); !strings.Contains(out, digest) {
			t.Errorf("a dry run does not tell: %s", out)
		}
		y.OK(t, "gc")
		if _, err := os.Stat(stored); err == nil {
			t.Error("gc left a bundle that nobody has used for a week")
		}
		y.Run(t, "run", "--repo", repo, "--config-bundle", digest, "--", "true").Refused(t, 125, policy.CodeBundleUnknown)
		y.Run(t, "bundle", "rm", digest).Refused(t, 1, policy.CodeBundleUnknown)
		y.Run(t, "run", "--repo", repo, "--config-bundle", "sha256:short", "--", "true").Refused(t, 125, policy.CodeBundleInvalid)
		// What is stored is not believed.
		y.OK(t, "bundle", "add", dir)
		if err := os.WriteFile(stored+"/tree/agent.toml", []byte("model = 2\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		y.Run(t, "run", "--repo", repo, "--config-bundle", digest, "--", "true").Refused(t, 125, policy.CodeBundleCorrupt)
		y.OK(t, "bundle", "rm", digest)
		for _, bad := range []string{dir + "/none", dir + "/agent.toml", "/dev"} {
			y.Run(t, "bundle", "add", bad).Refused(t, 1, policy.CodeBundleInvalid)
		}
		if entries, err := os.ReadDir(filepath.Join(y.Root, "config-bundles")); err != nil || len(entries) != 0 {
			t.Errorf("left are %v, %v", entries, err)
		}
	})
}

func TestBundleThroughDaemons(t *testing.T) {
	dir := sample(t)
	pairs(t, nil, func(t *testing.T, d *rig.Daemons, repo string) {
		var archive bytes.Buffer
		if err := bundle.Pack(dir, &archive); err != nil {
			t.Fatal(err)
		}
		b, err := d.Client.AddBundle(t.Context(), bytes.NewReader(archive.Bytes()))
		if err != nil || b.Files != 3 {
			t.Fatalf("%+v, %v", b, err)
		}
		ws := workspace(t, d, repo, policy.SandboxPolicy{ConfigBundle: b.Digest})
		w := d.Spawn(t, ws.ID, attackBundle)
		if _, out := ended(t, d, w.ID); out != attacked {
			t.Errorf("inside:\n%s", out)
		}
		ev, err := d.Client.WorkspaceEvidence(t.Context(), ws.ID)
		if err != nil || ev.SandboxPolicy.ConfigBundle != b.Digest {
			t.Errorf("the evidence has %q, %v", ev.SandboxPolicy.ConfigBundle, err)
		}
		if err := d.Client.RemoveBundle(t.Context(), b.Digest); !errors.Is(err, policy.CodeBundleInUse) {
			t.Errorf("removing it in use: %v", err)
		}
		list, err := d.Client.ListBundles(t.Context())
		if err != nil || len(list) != 1 || list[0].Digest != b.Digest {
			t.Errorf("listed are %+v, %v", list, err)
		}
		remove(t, d, ws.ID)
		if err := d.Client.RemoveBundle(t.Context(), b.Digest); err != nil {
			t.Error(err)
		}
		if _, err := d.Client.AddBundle(t.Context(), strings.NewReader("not an archive, whatever it says")); !errors.Is(err, policy.CodeBundleInvalid) {
			t.Errorf("nonsense: %v", err)
		}
		if _, err := d.Client.AddBundle(t.Context(), bytes.NewReader(archive.Bytes()[:1000])); !errors.Is(err, policy.CodeBundleInvalid) {
			t.Errorf("half: %v", err)
		}
	})
}
