specs = []
