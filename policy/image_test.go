package policy

import (
	"errors"
	"testing"
)

func TestRootProfiles(t *testing.T) {
	for root, code := range map[RootProfile]error{
		"": nil, RootSystem: nil, RootMinimal: nil, "image:debian-12": nil,
		"image:": CodeIDInvalid, "image:../x": CodeIDInvalid, "image:a/b": CodeIDInvalid, "image:A": CodeIDInvalid, "image:-x": CodeIDInvalid,
		"images:a": CodePolicyInvalid, "host": CodePolicyInvalid, "/": CodePolicyInvalid,
	} {
		if err := (SandboxPolicy{Root: root}).Validate(); code == nil && err != nil || code != nil && !errors.Is(err, code) {
			t.Errorf("%q: %v, want %v", root, err, code)
		}
	}
	if name, ok := RootImage("a").Image(); !ok || name != "a" {
		t.Errorf("%q %v", name, ok)
	}
	if _, ok := RootSystem.Image(); ok {
		t.Error("system names an image")
	}
}

func TestImageNameFor(t *testing.T) {
	for ref, want := range map[string]ImageName{
		"busybox": "busybox", "busybox:latest": "busybox", "debian:12": "debian-12", "docker.io/library/Debian:12-Slim": "debian-12-slim",
		"localhost:5000/a/b:1.2": "b-1.2", "localhost:5000/b": "b", "a@sha256:0123": "a", "x/y:1@sha256:0123": "y-1", "12": "12",
		"": "", "../..": "", ":": "", "/": "",
	} {
		if got := ImageNameFor(ref); got != want {
			t.Errorf("%q becomes %q, want %q", ref, got, want)
		}
	}
}

func TestImageDriversAndLimits(t *testing.T) {
	for s, want := range map[string]ImageDriver{"": ImageOverlay, "overlay": ImageOverlay, "vfs": ImageVFS} {
		if d, err := ParseImageDriver(s); err != nil || d != want {
			t.Errorf("%q: %v %v", s, d, err)
		}
	}
	if _, err := ParseImageDriver("btrfs"); !errors.Is(err, CodePolicyInvalid) {
		t.Error(err)
	}
	for _, l := range []ImageLimits{{Bytes: -1}, {Entries: -1}, {Bytes: 1 << 62}, {Entries: 1 << 40}} {
		if err := l.Validate(); !errors.Is(err, CodeLimitsInvalid) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	if l := (ImageLimits{Bytes: 5}).Normalize(); l.Bytes != 5 || l.Entries == 0 {
		t.Errorf("%+v", l)
	}
}
