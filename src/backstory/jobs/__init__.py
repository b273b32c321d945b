"""Jobs: commands run in processes of their own, which end with the program that started them."""
