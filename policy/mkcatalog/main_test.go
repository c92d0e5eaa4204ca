package main

import (
	"bytes"
	"os"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

func TestCatalogIsUpToDate(t *testing.T) {
	got, err := os.ReadFile("../../systemd/yoi.catalog")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, render(policy.Events())) {
		t.Error("systemd/yoi.catalog is not what the table says: run go generate ./policy")
	}
}
