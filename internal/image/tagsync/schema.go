package tagsync

import _ "embed"

//go:embed images.schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of a watch list. Only [Load] checks
// rules for several keys together.
func Schema() []byte { return append([]byte(nil), schema...) }
