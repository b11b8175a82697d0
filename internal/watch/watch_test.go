package watch

import "testing"

func TestIDString(t *testing.T) {
	tests := []struct {
		id    ID
		want  string
		layer Layer
	}{
		{NewID("node.load"), "node.load", LayerNode},
		{NewID("disk.read_bytes", "node", "n1", "device", "sda"), `disk.read_bytes{device="sda",node="n1"}`, LayerDisk},
		{NewID("vendor.x", "a", "1\"\\\n"), `vendor.x{a="1\"\\\n"}`, LayerVendor},
	}
	for _, tt := range tests {
		if got := tt.id.String(); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
		if got := tt.id.Layer(); got != tt.layer {
			t.Errorf("%s: layer %s, want %s", tt.id, got, tt.layer)
		}
	}
	if got := NewID("disk.x", "b", "2", "a", "1").Label("b"); got != "2" {
		t.Errorf("label b is %q", got)
	}
}
