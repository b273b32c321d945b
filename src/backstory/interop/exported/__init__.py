"""The model as exports carry it: each part in its simplest exact form, in plain torch. `exporting` joins the files into one."""
